{{/*
The directories of the node that the container sees, as {mounts: [{name, path, at, …}]}. Directories, never files or
sockets: a mounted file becomes stale when it is replaced.

 writable   otherwise read-only, recursively if the runtime supports it
 live       later mounts of the node appear too
 type       of the hostPath; missing directories are created, so that one DaemonSet fits all nodes, except the kubelet's:
            a created one would be wrong
 also       a second place in the container
 from       the value that names it, for errors
*/}}
{{- define "devhost.mounts" -}}
{{- $needs := fromYaml (include "devhost.needs" .) -}}
{{- $writable := or $needs.virtualFunctions $needs.partitions $needs.firmware -}}
{{- $mounts := list
  (dict "name" "device-plugins" "path" .Values.kubelet.pluginDirectory "at" "/var/lib/kubelet/device-plugins" "type" "Directory" "writable" true)
  (dict "name" "pod-resources" "path" (printf "%s/pod-resources" (trimSuffix "/" .Values.kubelet.root)) "at" "/var/lib/kubelet/pod-resources" "type" "Directory")
-}}
{{- if $needs.root -}}
{{- $mounts = append $mounts (dict "name" "root" "path" "/" "at" "/host" "type" "Directory" "live" true) -}}
{{- end -}}
{{- $udev := dict "name" "udev" "path" "/run/udev" "at" "/host/run/udev" -}}
{{- if $needs.network -}}
{{- $_ := set $udev "also" "/run/udev" -}}
{{- end -}}
{{- $mounts = concat $mounts (list
  (dict "name" "dev" "path" "/dev" "at" "/host/dev" "type" "Directory" "writable" $needs.deviceOwners)
  (dict "name" "sys" "path" "/sys" "at" "/host/sys" "type" "Directory" "writable" $writable)
  (dict "name" "proc" "path" "/proc" "at" "/host/proc" "type" "Directory")
  $udev) -}}
{{- $files := $needs.files -}}
{{- if $needs.nvidiaDriver -}}
{{- $files = concat $files $needs.driverDirectories -}}
{{- end -}}
{{- if $needs.firmware -}}
{{- $files = append $files "/lib/firmware" -}}
{{- end -}}
{{- if not $needs.root -}}
{{- $seen := list "/dev" "/sys" "/proc" "/run/udev" -}}
{{- range $file := $files | uniq | sortAlpha -}}
  {{- $path := regexReplaceAll "/+" $file "/" | trimSuffix "/" -}}
  {{- if not $path -}}
    {{- include "devhost.fail" (list $ "config names a file in the node's root directory, which is not mounted in part: set host.root to true") -}}
  {{- end -}}
  {{- $covered := false -}}
  {{- range $seen -}}
    {{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) -}}{{- $covered = true -}}{{- end -}}
  {{- end -}}
  {{- if not $covered -}}
    {{- $seen = append $seen $path -}}
    {{- $name := regexReplaceAll "[^a-z0-9]+" (lower $path) "-" | trimAll "-" | trunc 40 | trimSuffix "-" -}}
    {{- if ne $path (printf "/%s" (replace "-" "/" $name)) -}}{{/* so that no other directory has this name */}}
      {{- $name = printf "%s-%s" $name (sha256sum $path | trunc 8) | trimPrefix "-" -}}
    {{- end -}}
    {{- $mounts = append $mounts (dict "name" (printf "files-%s" $name) "path" $path "at" (printf "/host%s" $path) "live" true) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
{{- if $needs.verbs -}}
{{- $mounts = append $mounts (dict "name" "infiniband" "path" "/dev/infiniband" "at" "/dev/infiniband") -}}
{{- end -}}
{{- if or $needs.virtualFunctions $needs.migInstances -}}
{{- $mounts = append $mounts (dict "name" "notes" "path" "/run/devhost" "at" "/host/run/devhost" "writable" true) -}}
{{- end -}}
{{- $written := list -}}
{{- if $needs.cdi -}}{{- $written = append $written $needs.cdiDirectory -}}{{- end -}}
{{- if $needs.toolkit -}}{{- $written = append $written $needs.toolkitDirectory -}}{{- end -}}
{{- range $index, $path := $written -}}
{{- if not (and $index (eq (clean $path) (clean (first $written)))) -}}
{{- $mounts = append $mounts (dict "name" (eq $index 0 | ternary "cdi" "cdi-nvidia") "path" $path "at" $path "writable" true) -}}
{{- end -}}
{{- end -}}
{{- if $needs.nodeLabels -}}
{{- $mounts = append $mounts (dict "name" "node-labels" "path" $needs.labelDirectory "at" $needs.labelDirectory "writable" true) -}}
{{- end -}}
{{- if $needs.deviceInfo -}}
{{- $mounts = append $mounts (dict "name" "device-info" "path" $needs.deviceInfoDirectory "at" $needs.deviceInfoDirectory "writable" true) -}}
{{- end -}}
{{- if $needs.dra -}}{{/* the kubelet gets the path of a socket, so it must be the same in the container */}}
{{- $registry := include "devhost.pluginsRegistry" . -}}
{{- $mounts = append $mounts (dict "name" "plugins-registry" "path" $registry "at" $registry "type" "Directory" "writable" true) -}}
{{- $plugins := include "devhost.pluginsDirectory" . -}}
{{- range $index, $name := $needs.draDrivers -}}
{{- $driver := printf "%s/%s" $plugins $name -}}
{{- $mounts = append $mounts (dict "name" (eq $index 0 | ternary "dra" (printf "dra-%d" $index)) "path" $driver "at" $driver "writable" true) -}}
{{- end -}}
{{- end -}}
{{- range $index, $extra := .Values.extraHostPaths -}}
{{- $at := default (printf "/host%s" $extra.path) $extra.mountPath -}}
{{- $mounts = append $mounts (dict "name" (printf "extra-%d" $index) "from" (printf "extraHostPaths[%d]" $index) "path" $extra.path "at" $at "type" (default "DirectoryOrCreate" $extra.type) "live" true "writable" (eq (toString $extra.readOnly) "false")) -}}
{{- end -}}
{{- include "devhost.places" (list . $mounts) -}}
{{- dict "mounts" $mounts | toYaml -}}
{{- end -}}
