# Sourced by scripts here that take -count, -warm and -smoke, from the top of the checkout and with $count and $warm set.
# Any other word prints the comment at the top of the script.
while [ $# -gt 0 ]; do
	case $1 in
	-smoke) count=10 warm=2 ;;
	-count | -warm)
		[ $# -ge 2 ] || { echo "$1 wants a value" >&2; exit 2; }
		declare "${1#-}=$2"
		shift
		;;
	*) sed -n '2,/^set/s/^#\( \|$\)\?//p' "integration/bench/${0##*/}" >&2; exit 2 ;;
	esac
	shift
done
