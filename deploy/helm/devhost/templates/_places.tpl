{{/*
(context, mounts): fails if Kubernetes would refuse a path, two mounts have the same place in the container, or a mount would hide
what runs there.

 own      no mounts here, below or above
 system   no mounts here; below is allowed, such as a vendor's library
*/}}
{{- define "devhost.places" -}}
{{- $context := index . 0 -}}
{{- $own := dict "/opt/devhost" "devhost itself" "/etc/devhost" "the configuration" "/run/devhost" "devhost's own files" "/var/lib/devhost" "devhost's own files" "/proc" "the container's processes" -}}
{{- $system := list "/usr" "/usr/bin" "/usr/sbin" "/usr/lib" "/usr/lib64" "/usr/lib/x86_64-linux-gnu" "/usr/lib/aarch64-linux-gnu" -}}
{{- $places := dict "/etc/devhost" "the configuration" "/run/devhost" "devhost's own files" "/var/lib/devhost" "devhost's own files" -}}
{{- range $mount := index . 1 -}}
  {{- $who := default $mount.name $mount.from -}}
  {{- range $path := list $mount.path $mount.at -}}
    {{- if not (hasPrefix "/" $path) -}}
      {{- include "devhost.fail" (list $context (printf "%s: %q is not an absolute path: begin it with /" $who $path)) -}}
    {{- end -}}
    {{- if contains "/../" (printf "%s/" $path) -}}
      {{- include "devhost.fail" (list $context (printf "%s: Kubernetes refuses paths with ..: write the resolved path" $path)) -}}
    {{- end -}}
  {{- end -}}
  {{- range $at := compact (list $mount.at $mount.also) | uniq -}}
    {{- $at = clean $at -}}
    {{- with get $places $at -}}
      {{- include "devhost.fail" (list $context (printf "%s of the container is used twice, by %s and by %s: omit one, or use another path" $at . $who)) -}}
    {{- end -}}
    {{- $_ := set $places $at $who -}}
    {{- /* as Debian has it, where some directories are links to others */ -}}
    {{- $real := regexReplaceAll "^/var/run(/|$)" $at "/run${1}" -}}
    {{- $real = regexReplaceAll "^/(bin|sbin|lib|lib64)(/|$)" $real "/usr/${1}${2}" -}}
    {{- $hidden := "" -}}
    {{- range $place, $what := $own -}}
      {{- if or (hasPrefix (printf "%s/" $place) (printf "%s/" $real)) (hasPrefix (printf "%s/" (trimSuffix "/" $real)) (printf "%s/" $place)) -}}
        {{- $hidden = $what -}}
      {{- end -}}
    {{- end -}}
    {{- if or (has $real $system) (hasPrefix "/usr/lib/python3" $real) -}}
      {{- $hidden = "the programs and libraries that devhost runs on" -}}
    {{- else if has $real (list "/dev" "/sys") -}}
      {{- $hidden = "what the runtime puts there for every container" -}}
    {{- else if and (eq $real "/host") (ne $mount.name "root") -}}
      {{- $hidden = "the node's directories, which are below" -}}
    {{- end -}}
    {{- if $hidden -}}
      {{- include "devhost.fail" (list $context (printf "%s: a mount at %s of the container would hide %s: use another path" $who $at $hidden)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
