#!/bin/sh
# E2B's desktop SDK starts noVNC as if all of it stood here: novnc_proxy --vnc HOST:PORT
# --listen PORT --web FOLDER. It is Debian's.
while [ $# -gt 1 ]; do
  case $1 in
    --vnc) vnc=$2 ;;
    --listen) listen=$2 ;;
  esac
  shift 2
done
exec websockify --web /usr/share/novnc "${listen:-6080}" "${vnc:-localhost:5900}"
