# A machine for one cluster: mounts, network and processes of its own, over the real one's files. Called with all rights in these
# namespaces: machine.sh PLACE MULLION KUBECTL user|root
#
# Leaves in PLACE/seen what the machine had before the cluster, while it ran and after it, in one file a subject; what the cluster
# answered is there too.
set -eu
PATH=$PATH:/usr/sbin:/sbin
place=$1 as=$4
seen=$place/seen
mkdir -p "$place/home" "$place/bin" "$seen"
for program in "mullion $2" "kubectl $3"; do
    : >"$place/bin/${program%% *}"
    mount --bind "$(command -v "${program#* }")" "$place/bin/${program%% *}"
done

# What is written below these directories is then below $scratch/written, and nowhere else. A directory below which others have
# mounted something cannot be covered so: there, names tell.
scratch=$place/scratch
mkdir "$scratch"
mount -t tmpfs none "$scratch"
uncovered=
for dir in etc home opt root srv usr var; do
    [ -d "/$dir" ] && [ ! -L "/$dir" ] || continue
    mkdir -p "$scratch/written/$dir" "$scratch/work/$dir"
    mount -t overlay -o "lowerdir=/$dir,upperdir=$scratch/written/$dir,workdir=$scratch/work/$dir" overlay "/$dir" || uncovered="$uncovered /$dir"
done 2>/dev/null
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount -t tmpfs none /var/tmp
mkdir /run/place
mount --rbind "$place" /run/place
mount -t tmpfs none /tmp
mkdir -p "$place"
mount --move /run/place "$place"
rmdir /run/place

# No Wine.
for dir in /usr/lib/wine /opt/wine-stable; do [ ! -d $dir ] || mount -t tmpfs none $dir; done
[ ! -e /usr/bin/wine64 ] || mount --bind /dev/null /usr/bin/wine64

# Something of everything that must stay as it is.
ip link set lo up
ip address add 198.51.100.1/32 dev lo
ip link add name mine0 type veth peer name mine1
ip address add 203.0.113.1/24 dev mine0
ip link set mine0 up
ip route add blackhole 192.0.2.0/24
ip rule add pref 1000 from 192.0.2.1 lookup main
nft -f - <<'RULES'
table inet mine {
    chain input { type filter hook input priority 0; policy accept; tcp dport 1 drop; }
    chain nat { type nat hook output priority -100; ip daddr 192.0.2.2 dnat to 198.51.100.1; }
}
RULES

snapshot() {
    mkdir -p "$seen/$1"
    cd "$seen/$1"
    ip -details link >links
    ip address >addresses
    { ip route show table all && ip -6 route show table all && ip rule && ip -6 rule; } >routes
    nft list ruleset >nft
    if command -v iptables-save >/dev/null; then iptables-save >iptables-save && sed '/^#/d' iptables-save >iptables; fi
    # How many connections there are changes by itself.
    grep -rs '' /proc/sys/net | grep -v nf_conntrack_count | sort >sysctls
    cat /proc/self/mountinfo >mounts
    for process in /proc/[0-9]*; do
        line=$(tr '\0' ' ' <"$process/cmdline" || true)
        # Neither this shell nor what has ended meanwhile.
        [ "${process#/proc/}" = $$ ] || [ -z "$line" ] || echo "${process#/proc/} $line"
    done >processes 2>/dev/null
    sort -u /proc/[0-9]*/cgroup >cgroups 2>/dev/null || true
    find "$scratch/written" -mindepth 2 >files
    [ -z "$uncovered" ] || find $uncovered -xdev -iname '*mullion*' >>files
    find /tmp /run /dev/shm /var/tmp -path "$place" -prune -o -print >>files
    find "$place/home" -mindepth 1 >home
    cd /
}

# Whoever starts the cluster: this namespace's root, or a user who has no rights in it.
if [ "$as" = user ]; then
    unshare --user --map-user=1000 --map-group=1000 sleep 100000 &
    until grep -q 1000 "/proc/$!/uid_map"; do sleep 0.01; done
    enter="nsenter --user=/proc/$!/ns/user --preserve-credentials"
else
    enter=
fi
run() { $enter env -i PATH="$place/bin:$PATH" HOME="$place/home" KUBECACHEDIR="$place/kubectl" KUBECONFIG="$place/home/.local/state/mullion/pki/admin.conf" "$@"; }

snapshot before
run mullion up --detach >"$seen/up" 2>&1
run kubectl apply -f "$place/pods.yaml" >"$seen/apply" 2>&1
run kubectl rollout status deployment/iis --timeout=60s >"$seen/rollout" 2>&1
port=$(run kubectl get service iis -o 'jsonpath={.spec.ports[0].nodePort}')
run mullion template --status >"$seen/template" 2>&1 || echo "code $?" >>"$seen/template"
run curl -s --retry 10 --retry-connrefused "http://127.0.0.1:$port/" >"$seen/page"
run kubectl exec deployment/iis -- cmd /c ver >"$seen/exec" 2>&1 || true
# Until the pod that needs Wine has said what it lacks, or a minute has passed.
for try in $(seq 120); do
    run kubectl describe pod needs-wine >"$seen/describe"
    ! grep -q 'Warning  Failed' "$seen/describe" || break
    sleep 0.5
done
run mullion status >"$seen/status"
# The line that enters the lab, as a user pastes it.
run sh -c "$(sed -n 's/.*enter the lab: //p' "$seen/status") id -u" >"$seen/enter" 2>&1 || echo "code $?" >>"$seen/enter"
snapshot during
run mullion down >"$seen/down" 2>&1
snapshot after
# The control groups that the cluster's processes were in, as far as they are there still.
comm -13 "$seen/before/cgroups" "$seen/during/cgroups" | while read -r group; do
    find /sys/fs/cgroup -type d -name "${group##*/}"
done >"$seen/after/groups"
run mullion down --delete >"$seen/delete" 2>&1 || echo "code $?" >>"$seen/delete"
snapshot deleted
