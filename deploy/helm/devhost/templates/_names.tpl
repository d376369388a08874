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

{{/* The namespace of the objects: as a dependency the chart may belong elsewhere than its parent. */}}
{{- define "devhost.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Names of what there is for each DaemonSet. */}}
{{- define "devhost.daemonset" -}}
{{- include "devhost.fullname" . -}}{{- with .Group -}}-{{- . -}}{{- end -}}
{{- end -}}

{{/* Of the pods of a DaemonSet. That of the release itself, which can never change, must not select a group's pods. */}}
{{- define "devhost.instance" -}}
{{- .Release.Name -}}{{- with .Group -}}_{{- . -}}{{- end -}}
{{- end -}}

{{- define "devhost.selector" -}}
app.kubernetes.io/name: {{ include "devhost.name" . | quote }}
app.kubernetes.io/instance: {{ include "devhost.instance" . | quote }}
{{- end -}}

{{/* A label of all objects and pods of a group. */}}
{{- define "devhost.groupLabel" -}}
{{- with .Group -}}
devhost.dev/group: {{ . | quote }}
{{- end -}}
{{- end -}}

{{/* Of the pods that make devhost release the GPU driver; not devhost's own labels, which keep releases apart. */}}
{{- define "devhost.releaseLabels" -}}
app.kubernetes.io/name: {{ printf "%s-release" (include "devhost.name" . | trunc 55 | trimSuffix "-") | quote }}
app.kubernetes.io/instance: {{ include "devhost.instance" . | quote }}
{{- end -}}

{{/* The node's directory for the status socket, if another pod uses it. */}}
{{- define "devhost.sharedRun" -}}
/run/devhost-shared
{{- end -}}

{{/*
The affinity of the values, on the nodes of the group. Unless it has a podAntiAffinity, pods avoid nodes with another
release or group of devhost, in any namespace.
*/}}
{{- define "devhost.affinity" -}}
{{- $name := include "devhost.name" . -}}
{{- $names := list "devhost" $name | uniq -}}
{{- $devhost := dict "key" "app.kubernetes.io/name" "operator" "In" "values" $names -}}
{{- $foreign := dict "key" "app.kubernetes.io/instance" "operator" "NotIn" "values" (list (include "devhost.instance" .)) -}}
{{- $elsewhere := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" (list (include "devhost.namespace" .)) -}}
{{- $here := dict "topologyKey" "kubernetes.io/hostname"
  "labelSelector" (dict "matchExpressions" (list $devhost $foreign)) -}}
{{- $there := dict "topologyKey" "kubernetes.io/hostname"
  "labelSelector" (dict "matchExpressions" (list $devhost))
  "namespaceSelector" (dict "matchExpressions" (list $elsewhere)) -}}
{{- $apart := dict "requiredDuringSchedulingIgnoredDuringExecution" (list $here $there) -}}
{{- $own := deepCopy (default dict .Values.affinity) -}}
{{- if .Terms -}}
{{- $nodes := default dict $own.nodeAffinity -}}
{{- $required := include "devhost.nodes" . | fromYaml -}}
{{- $_ := set $own "nodeAffinity" (merge $required (omit $nodes "requiredDuringSchedulingIgnoredDuringExecution")) -}}
{{- end -}}
{{- ternary $own (merge (dict "podAntiAffinity" $apart) $own) (hasKey $own "podAntiAffinity") | toYaml -}}
{{- end -}}

{{/* Names of objects without a namespace; a dot, which no namespace has, keeps two releases apart. */}}
{{- define "devhost.clusterName" -}}
{{- printf "%s.%s" (include "devhost.fullname" .) (include "devhost.namespace" .) -}}
{{- end -}}

{{/* The service account of the pods; empty: that of the namespace. */}}
{{- define "devhost.serviceAccount" -}}
{{- if .Values.serviceAccountName -}}
{{- .Values.serviceAccountName -}}
{{- else if or (.Values.dra).enabled (.Values.nodeCondition).enabled -}}
{{- include "devhost.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "devhost.labels" -}}
app.kubernetes.io/name: {{ include "devhost.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- with include "devhost.groupLabel" . }}
{{ . }}
{{- end }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version"
  "app.kubernetes.io/managed-by" "helm.sh/chart" "devhost.dev/group" -}}
{{- range $key, $value := .Values.commonLabels }}
{{- if not (has $key $own) }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (context, values of a monitor): what an endpoint of either kind of monitor has. */}}
{{- define "devhost.endpoint" -}}
{{- $monitor := index . 1 -}}
port: metrics
honorLabels: true # metrics name pods that hold devices
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
  - {targetLabel: job, replacement: devhost} # the alerts expect this name
  - {sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance], targetLabel: group} # with the same file
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (context, labels of the values): both, and those of the values where both have one. */}}
{{- define "devhost.labelsAnd" -}}
{{- merge dict (default dict (index . 1)) (fromYaml (include "devhost.labels" (index . 0))) | toYaml -}}
{{- end -}}

{{- define "devhost.image" -}}
{{- $name := .Values.image.repository -}}
{{- with (.Values.global).imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Secrets to pull the image with: those of the values, and those of a parent chart, which are names or maps. */}}
{{- define "devhost.pullSecrets" -}}
{{- $secrets := default list .Values.imagePullSecrets -}}
{{- range (.Values.global).imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "map" . | ternary . (dict "name" .)) -}}
{{- end -}}
{{- with $secrets -}}
{{- uniq . | toYaml -}}
{{- end -}}
{{- end -}}
