{{- define "devhost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* What objects are called: the release, with the chart's name unless the release has it already. */}}
{{- define "devhost.fullname" -}}
{{- $release := .Release.Name | replace "." "-" -}}{{/* a Service cannot have a dot in its name */}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "devhost.name" .) $release -}}
{{- $release | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release (include "devhost.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "devhost.selector" -}}
app.kubernetes.io/name: {{ include "devhost.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "devhost.labels" -}}
{{ include "devhost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* (context, labels of the values): both, and those of the values where both have one. */}}
{{- define "devhost.labelsAnd" -}}
{{- merge dict (default dict (index . 1)) (fromYaml (include "devhost.labels" (index . 0))) | toYaml -}}
{{- end -}}

{{- define "devhost.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}
