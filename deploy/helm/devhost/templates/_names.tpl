{{- define "devhost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* What objects are called: the release, with the chart's name unless the release has it already. */}}
{{- define "devhost.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "devhost.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "devhost.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "devhost.selector" -}}
app.kubernetes.io/name: {{ include "devhost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "devhost.labels" -}}
{{ include "devhost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "devhost.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The argument of --listen. */}}
{{- define "devhost.listen" -}}
{{- $address := .Values.listen.address -}}
{{- if contains "::" $address -}}
{{- $address = printf "[%s]" $address -}}
{{- end -}}
{{- printf "%s:%d" $address (int .Values.listen.port) -}}
{{- end -}}

{{/* Which host a probe asks: nothing (the pod's address) unless it listens on the node's loopback alone. */}}
{{- define "devhost.probeHost" -}}
{{- if or (hasPrefix "127." .Values.listen.address) (eq .Values.listen.address "::1") -}}
{{- .Values.listen.address -}}
{{- end -}}
{{- end -}}
