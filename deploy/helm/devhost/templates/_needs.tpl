{{/*
What the configuration needs of the node, as YAML. The texts of docs/backends, docs/cdi.md, docs/labels.md and
docs/device-info.md explain why; tests/chart/golden has a case for each.
*/}}

{{/* The configuration as a map; empty with existingConfigMap. */}}
{{- define "devhost.config" -}}
{{- if .Values.existingConfigMap -}}
{}
{{- else if kindIs "string" .Values.config -}}
{{- $parsed := fromYaml .Values.config -}}
{{- with $parsed.Error -}}
{{- if contains "cannot unmarshal" . -}}
  {{- include "devhost.fail" (list $ "config must be a map with version and resources") -}}
{{- end -}}
{{- include "devhost.fail" (list $ (printf "config is no YAML: %s" (replace "\n" " " .))) -}}
{{- end -}}
{{- include "devhost.outline" (list . $parsed) -}}
{{- toYaml $parsed -}}
{{- else -}}
{{- include "devhost.outline" (list . .Values.config) -}}
{{- toYaml .Values.config -}}
{{- end -}}
{{- end -}}

{{- define "devhost.needs" -}}
{{- $config := fromYaml (include "devhost.config" .) -}}
{{- $backends := default dict $config.backends -}}
{{- $gpu := default dict $backends.gpu -}}
{{- $sriov := default dict $backends.sriov -}}
{{- $udev := default dict $backends.udev -}}
{{- $used := dict -}}
{{- $inject := false -}}
{{- $programs := false -}}
{{- $firmware := false -}}
{{- $owners := false -}}
{{- $eswitch := false -}}
{{- $slices := false -}}
{{- $dra := eq (toString (default dict .Values.dra).enabled) "true" -}}
{{- $files := list -}}
{{- range $config.resources -}}
  {{- $_ := set $used .backend true -}}
  {{- if eq (toString .inject) "cdi" -}}{{- $inject = true -}}{{- end -}}
  {{- if and (eq (toString .backend) "udev") (eq (toString .kubevirt) "true") -}}{{- $owners = true -}}{{- end -}}
  {{- if and (eq (toString .backend) "sriov") (contains "eswitchMode" (list .name .where | toJson)) -}}{{- $eswitch = true -}}{{- end -}}
  {{- if and (eq (toString .backend) "gpu") .timeSlice -}}{{- $slices = true -}}{{- end -}}
  {{- with .program -}}
    {{- $programs = true -}}
    {{- $files = append $files (dir .bitstream) -}}
    {{- if regexMatch "^(/usr)?/lib/firmware/" .bitstream -}}{{- $firmware = true -}}{{- end -}}
  {{- end -}}
  {{- if .mps -}}
    {{- $mps := .mps -}}
    {{- range (list "root" "pipeDirectory" "shmDirectory") -}}
      {{- with get $mps . -}}{{- $files = append $files . -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $sriov.virtualFunctions -}}{{- $_ := set $used "sriov" true -}}{{- end -}}
{{- if $gpu.partitions -}}{{- $_ := set $used "gpu" true -}}{{- end -}}
{{- $toolkit := false -}}
{{- $instances := false -}}
{{- $occupied := false -}}
{{- if hasKey $used "gpu" -}}
  {{- $strategies := $gpu.deviceListStrategy -}}
  {{- if not (kindIs "slice" $strategies) -}}{{- $strategies = list $strategies -}}{{- end -}}
  {{- if has "cdi" $strategies -}}{{- $toolkit = true -}}{{- end -}}
  {{- if eq (toString $gpu.mig) "dynamic" -}}{{- $instances = true -}}{{- end -}}
  {{- with $gpu.driverDirectory -}}{{- $files = append $files . -}}{{- end -}}
  {{- $occupied = eq (toString $gpu.occupied) "refuse" -}}
{{- end -}}
{{- if hasKey $used "udev" -}}
  {{- range $group := $udev.groups -}}
    {{- range (concat (default list $group.mounts) (default list $group.members)) -}}
      {{- with .path -}}
        {{- $files = append $files (dir (regexReplaceAll "[*?\\[].*" . "x")) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $host := .Values.host -}}
{{- $processes := include "devhost.wanted" (list .Values.hostPID $occupied) -}}
{{- if eq $processes "true" -}}{{- $files = append $files "/var/log/pods" -}}{{- end -}}
{{- $least := hasKey $used "gpu" | ternary "gpu" "unprivileged" -}}
{{- $privileged := or $programs $toolkit $instances (not (empty $gpu.partitions)) -}}
{{- $profile := include "devhost.wanted" (list .Values.securityProfile (ternary "privileged" $least $privileged)) -}}
{{- $needed := list -}}
{{- if $eswitch -}}{{- $needed = append $needed "NET_ADMIN" -}}{{- end -}}
{{- if $slices -}}{{- $needed = append $needed "SYS_ADMIN" -}}{{- end -}}
{{- if eq (include "devhost.wanted" (list $host.deviceOwners $owners)) "true" -}}{{- $needed = append $needed "CHOWN" -}}{{- end -}}
network: {{ include "devhost.wanted" (list .Values.hostNetwork (or (hasKey $used "sriov") (hasKey $used "rdma"))) }}
processes: {{ $processes }}
cdi: {{ include "devhost.wanted" (list $host.cdi (or $inject $toolkit $dra)) }}
nodeLabels: {{ include "devhost.wanted" (list $host.nodeLabels (dig "labels" "write" false $config)) }}
deviceInfo: {{ include "devhost.wanted" (list $host.deviceInfo (and (hasKey $used "sriov") (dig "deviceInfo" "write" true $config))) }}
virtualFunctions: {{ include "devhost.wanted" (list $host.virtualFunctions (not (empty $sriov.virtualFunctions))) }}
partitions: {{ include "devhost.wanted" (list $host.partitions (not (empty $gpu.partitions))) }}
migInstances: {{ include "devhost.wanted" (list $host.migInstances $instances) }}
firmware: {{ include "devhost.wanted" (list $host.firmware $firmware) }}
deviceOwners: {{ include "devhost.wanted" (list $host.deviceOwners $owners) }}
nvidiaDriver: {{ include "devhost.wanted" (list $host.nvidiaDriver (hasKey $used "gpu")) }}
verbs: {{ include "devhost.wanted" (list $host.verbs (and (hasKey $used "rdma") (eq $profile "privileged"))) }}
profile: {{ $profile }}
capabilities: {{ concat (default list .Values.capabilities) $needed | uniq | toJson }}
root: {{ include "devhost.wanted" (list $host.root $toolkit) }}
dra: {{ $dra }}
draStatus: {{ include "devhost.wanted" (list (default dict .Values.dra).status (dig "dra" "status" false $config)) }}
draDrivers: {{ include "devhost.draDrivers" (list . $config) }}
gpu: {{ hasKey $used "gpu" }}
rdma: {{ hasKey $used "rdma" }}
programs: {{ $programs }}
toolkit: {{ $toolkit }}
cdiDirectory: {{ dig "cdi" "directory" "/var/run/cdi" $config | quote }}
toolkitDirectory: {{ last (default (list "/var/run/cdi") $gpu.cdiDirectories) | quote }}
labelDirectory: {{ dig "labels" "directory" "/etc/kubernetes/node-feature-discovery/features.d" $config | quote }}
deviceInfoDirectory: {{ dig "deviceInfo" "directory" "/var/run/k8s.cni.cncf.io/devinfo/dp" $config | quote }}
driverDirectories: {{ eq (clean (default "/" $gpu.driverRoot)) "/" | ternary (list "/usr") (list (eq (clean (default "/" $gpu.driverRoot)) "/run/nvidia/driver" | ternary "/run/nvidia" $gpu.driverRoot)) | concat (eq (clean (default "/" $gpu.devRoot)) "/" | ternary list (list $gpu.devRoot)) | toJson }}
files: {{ $files | toJson }}
{{- end -}}

{{/* (value, derived): the derived answer where the value is auto. */}}
{{- define "devhost.wanted" -}}
{{- if has (toString (index . 0)) (list "auto" "<nil>") -}}{{ index . 1 }}{{- else -}}{{ index . 0 }}{{- end -}}
{{- end -}}
