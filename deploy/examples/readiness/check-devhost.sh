#!/bin/bash
# For node-problem-detector: exits with 0 if devhost is ready, 1 with the reason if not, 2 if that is unknown.
# On the node itself this is `devhost ready`. A pod has no devhost, so there it is /readyz, which ignores `expect`.
for devhost in devhost /opt/devhost/bin/devhost; do
  if command -v "$devhost" >/dev/null; then
    exec "$devhost" ready
  fi
done
address=${DEVHOST_ADDRESS:-127.0.0.1:9400}
if ! exec 2>/dev/null 3<>"/dev/tcp/${address%:*}/${address##*:}"; then
  echo "unknown: devhost does not answer at $address"
  exit 2
fi
printf 'GET /readyz HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$address" >&3
read -r -t 4 -u 3 _ code _
while read -r -t 4 -u 3 line && [ "$line" != $'\r' ]; do :; done
read -r -t 4 -u 3 reason
case $code in
  200) echo ready ;;
  503) echo "not ready: $reason"; exit 1 ;;
  *) echo "unknown: devhost does not answer at $address"; exit 2 ;;
esac
