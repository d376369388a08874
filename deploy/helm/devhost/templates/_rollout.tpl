{{/* "true" if an edit replaces pods; empty if running pods read it. */}}
{{- define "devhost.rolling" -}}
{{- $rollout := default "live" .Values.rollout -}}
{{- if eq (kindIs "string" $rollout | ternary $rollout (get (kindIs "map" $rollout | ternary $rollout dict) "mode")) "rolling" -}}true{{- end -}}
{{- end -}}

{{/* How long a pod is not ready while its file leaves entries without devices. */}}
{{- define "devhost.patience" -}}
{{- $rollout := kindIs "map" .Values.rollout | ternary .Values.rollout dict -}}
{{- default "10m" $rollout.patience -}}
{{- end -}}

{{/* The ConfigMap of the pods; with rolling its name changes with its content, so that pods are replaced. */}}
{{- define "devhost.configName" -}}
{{- if .Values.existingConfigMap -}}
{{- .Values.existingConfigMap -}}
{{- else if include "devhost.rolling" . -}}
{{- printf "%s-%s" (include "devhost.daemonset" . | trunc 54 | trimSuffix "-") (include "devhost.configData" . | sha256sum | trunc 8) -}}
{{- else -}}
{{- include "devhost.daemonset" . -}}
{{- end -}}
{{- end -}}

{{- define "devhost.configData" -}}
data:
  devhost.yaml: |2
    {{- if kindIs "string" .Values.config }}
    {{- .Values.config | nindent 4 }}
    {{- else }}
    {{- toYaml .Values.config | nindent 4 }}
    {{- end }}
  {{- range $name, $text := .Values.configFiles }}
  {{ quote $name }}: |2
    {{- $text | nindent 4 }}
  {{- end }}
{{- end -}}
