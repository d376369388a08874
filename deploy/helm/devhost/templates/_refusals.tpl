{{/* Fails for values that Kubernetes would refuse, or that make no sense, and that the schema cannot check. */}}
{{- define "devhost.refusals" -}}
{{- include "devhost.checkListen" . -}}
{{- include "devhost.checkNetworkPolicy" . -}}
{{- include "devhost.checkDra" . -}}
{{- include "devhost.checkNodeCondition" . -}}
{{- include "devhost.checkSurge" . -}}
{{- if and (.Values.podMonitor).enabled (.Values.serviceMonitor).enabled -}}
  {{- include "devhost.fail" (list $ "podMonitor.enabled and serviceMonitor.enabled make Prometheus read each devhost twice: omit one of them") -}}
{{- end -}}
{{- if and .Values.existingConfigMap .Values.configFiles -}}
  {{- include "devhost.fail" (list $ (printf "configFiles belong to the chart's ConfigMap, which existingConfigMap replaces: put them into %s" .Values.existingConfigMap)) -}}
{{- end -}}
{{- $part := "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*" -}}
{{- if not (regexMatch (printf "^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?%s(/%s)*$" $part $part) .Values.image.repository) -}}
  {{- include "devhost.fail" (list $ (printf "image.repository %s is not a valid image name: after the registry, use lower-case letters and digits, separated by single . _ or -" .Values.image.repository)) -}}
{{- end -}}
{{- range $name := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "devhost.dev/group" -}}
  {{- if hasKey (default dict $.Values.podLabels) $name -}}
    {{- include "devhost.fail" (list $ (printf "podLabels: %s is set by the chart, to select its pods: omit it" $name)) -}}
  {{- end -}}
{{- end -}}
{{- include "devhost.checkEnv" . -}}
{{- include "devhost.checkCapabilities" . -}}
{{- include "devhost.checkTolerations" . -}}
{{- include "devhost.checkResources" . -}}
{{- end -}}

{{/* Fails if Prometheus needs access and the NetworkPolicy admits no pod. */}}
{{- define "devhost.checkNetworkPolicy" -}}
{{- $policy := default dict .Values.networkPolicy -}}
{{- if and $policy.enabled (not $policy.from) -}}
  {{- range $key := list "podMonitor" "serviceMonitor" "service" -}}
    {{- if (default dict (get $.Values $key)).enabled -}}
      {{- include "devhost.fail" (list $ (printf "networkPolicy.from is empty, so no pod reaches the port, but %s.enabled needs Prometheus to: add its pods or namespace to networkPolicy.from" $key)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "devhost.checkEnv" -}}
{{- $seen := list "NODE_IP" "NODE_NAME" "HOST_IP" -}}
{{- range $one := .Values.extraEnv -}}
  {{- if has $one.name (list "NODE_IP" "NODE_NAME" "HOST_IP") -}}
    {{- include "devhost.fail" (list $ (printf "extraEnv: %s is set by the chart: omit it" $one.name)) -}}
  {{- else if has $one.name $seen -}}
    {{- include "devhost.fail" (list $ (printf "extraEnv: %s is given twice: omit one of them" $one.name)) -}}
  {{- else if and (hasKey $one "value") (hasKey $one "valueFrom") -}}
    {{- include "devhost.fail" (list $ (printf "extraEnv: %s has value and valueFrom: omit one of them" $one.name)) -}}
  {{- end -}}
  {{- $seen = append $seen $one.name -}}
{{- end -}}
{{- end -}}

{{- define "devhost.checkCapabilities" -}}
{{- $known := splitList " " "AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM" -}}
{{- range .Values.capabilities -}}
  {{- if hasPrefix "CAP_" . -}}
    {{- include "devhost.fail" (list $ (printf "capabilities: %s is written %s in Kubernetes" . (trimPrefix "CAP_" .))) -}}
  {{- else if eq . "ALL" -}}
    {{- include "devhost.fail" (list $ "capabilities: ALL is not allowed: list those that are needed, or set securityProfile: privileged") -}}
  {{- else if not (has . $known) -}}
    {{- include "devhost.fail" (list $ (printf "capabilities: Linux has no capability %s" .)) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "devhost.checkTolerations" -}}
{{- range $index, $one := .Values.tolerations -}}
  {{- $place := printf "tolerations[%d]" $index -}}
  {{- $operator := default "Equal" $one.operator -}}
  {{- if and (not $one.key) (ne $operator "Exists") -}}
    {{- include "devhost.fail" (list $ (printf "%s: without a key it matches every taint, and the operator must be Exists" $place)) -}}
  {{- else if and $one.value (eq $operator "Exists") -}}
    {{- include "devhost.fail" (list $ (printf "%s: Exists takes no value: omit it, or use Equal" $place)) -}}
  {{- else if and (has $operator (list "Lt" "Gt")) (not (regexMatch "^-?(0|[1-9][0-9]*)$" (default "" $one.value))) -}}
    {{- include "devhost.fail" (list $ (printf "%s: %s compares integers, but the value is %q" $place $operator (default "" $one.value))) -}}
  {{- else if and (hasKey $one "tolerationSeconds") (ne (default "" $one.effect) "NoExecute") -}}
    {{- include "devhost.fail" (list $ (printf "%s: tolerationSeconds is only for the effect NoExecute: omit one of them" $place)) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "devhost.checkResources" -}}
{{- $resources := default dict .Values.resources -}}
{{- $requests := default dict $resources.requests -}}
{{- range $name, $limit := default dict $resources.limits -}}
  {{- if hasKey $requests $name -}}
    {{- $request := get $requests $name -}}
    {{- if gt (float64 (include "devhost.quantity" $request)) (float64 (include "devhost.quantity" $limit)) -}}
      {{- include "devhost.fail" (list $ (printf "resources: requests.%s (%v) is more than limits.%s (%v): set both" $name $request $name $limit)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* (a quantity of Kubernetes, such as 64Mi or 10m): the number that it represents. */}}
{{- define "devhost.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?" $text -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number $text) | default 1.0) -}}
{{- end -}}
