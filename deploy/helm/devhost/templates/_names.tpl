{{- define "devhost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of objects: the release, and the chart's name unless the release contains it. */}}
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

{{/* Of the pods that make devhost release the GPU driver; not devhost's own labels, which keep releases apart. */}}
{{- define "devhost.releaseLabels" -}}
app.kubernetes.io/name: {{ printf "%s-release" (include "devhost.name" . | trunc 55 | trimSuffix "-") | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The node's directory for the status socket, if another pod uses it. */}}
{{- define "devhost.sharedRun" -}}
/run/devhost-shared
{{- end -}}

{{/*
The affinity of the values. Unless it has a podAntiAffinity, pods avoid nodes with another release of devhost, in any
namespace.
*/}}
{{- define "devhost.affinity" -}}
{{- $name := include "devhost.name" . -}}
{{- $names := list "devhost" $name | uniq -}}
{{- $devhost := dict "key" "app.kubernetes.io/name" "operator" "In" "values" $names -}}
{{- $foreign := dict "key" "app.kubernetes.io/instance" "operator" "NotIn" "values" (list .Release.Name) -}}
{{- $elsewhere := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" (list .Release.Namespace) -}}
{{- $here := dict "topologyKey" "kubernetes.io/hostname"
  "labelSelector" (dict "matchExpressions" (list $devhost $foreign)) -}}
{{- $there := dict "topologyKey" "kubernetes.io/hostname"
  "labelSelector" (dict "matchExpressions" (list $devhost))
  "namespaceSelector" (dict "matchExpressions" (list $elsewhere)) -}}
{{- $apart := dict "requiredDuringSchedulingIgnoredDuringExecution" (list $here $there) -}}
{{- $own := default dict .Values.affinity -}}
{{- ternary $own (merge (dict "podAntiAffinity" $apart) $own) (hasKey $own "podAntiAffinity") | toYaml -}}
{{- end -}}

{{/* Names of objects without a namespace; a dot, which no namespace has, keeps two releases apart. */}}
{{- define "devhost.clusterName" -}}
{{- printf "%s.%s" (include "devhost.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* The service account of the pods; empty: that of the namespace. */}}
{{- define "devhost.serviceAccount" -}}
{{- if .Values.serviceAccountName -}}
{{- .Values.serviceAccountName -}}
{{- else if (.Values.dra).enabled -}}
{{- include "devhost.fullname" . -}}
{{- end -}}
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
