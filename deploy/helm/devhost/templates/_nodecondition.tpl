{{/* Fails unless the values and the cluster agree on the condition of the node. */}}
{{- define "devhost.checkNodeCondition" -}}
{{- $values := default dict .Values.nodeCondition -}}
{{- if $values.enabled -}}
  {{- $version := .Capabilities.KubeVersion.Version -}}
  {{- if semverCompare "<1.30.0-0" $version -}}
    {{- fail (printf "nodeCondition.enabled needs Kubernetes 1.30 or newer, and this cluster has %s: set it to false" $version) -}}
  {{- else if and (.Values.networkPolicy).enabled (not .Values.networkPolicy.apiServerPorts) -}}
    {{- fail "networkPolicy.apiServerPorts is empty, so devhost cannot reach the API server, but nodeCondition.enabled needs that: add its ports, such as 443" -}}
  {{- end -}}
{{- else if $values.startupTaints -}}
  {{- fail "nodeCondition.startupTaints would stay, because nodeCondition.enabled is false: set it to true" -}}
{{- end -}}
{{- end -}}
