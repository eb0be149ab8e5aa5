#!/bin/sh
# Certificates for tests, good for a hundred years: two CAs that know nothing of each other, servers for localhost and
# 127.0.0.1, and a client. Made anew only where a test wants another kind: sh testdata/tls/make.sh
set -eu
cd "$(dirname "$0")"
days=36500
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }
ca() {
    key "$1"
    openssl req -x509 -new -key "$1.key" -subj "/CN=homing test $1" -days $days -out "$1.pem" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}
leaf() { # name ca extensions
    key "$1"
    printf '%s\n' "$3" 'basicConstraints=CA:FALSE' > ext.tmp
    openssl req -new -key "$1.key" -subj "/CN=homing test $1" -out csr.tmp
    openssl x509 -req -in csr.tmp -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days $days -extfile ext.tmp \
        -out "$1.pem" 2>/dev/null
}
ca ca
ca other-ca
names='subjectAltName=DNS:localhost,IP:127.0.0.1'
leaf server ca "$names"
leaf renewed ca "$names"
leaf stranger other-ca "$names"
leaf client ca 'extendedKeyUsage=clientAuth'
rm -f ./*.tmp ./*.srl ca.key other-ca.key
