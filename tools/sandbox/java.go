package sandbox

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// javaOptions is a variable whose options every Java virtual machine takes before those of
// its command line. Java reads neither the variables of a proxy nor a bundle of PEM.
const javaOptions = "JAVA_TOOL_OPTIONS"

// keystorePath is where the sandbox has its bundle for Java.
const keystorePath = Run + "/ca-certificates.jks"

// javaEnv returns javaOptions with options for what the sandbox has, and then those that
// the caller has set: the last of two equal options holds.
func (s *Spec) javaEnv(set string) string {
	var options []string
	if s.Proxy {
		at := netip.MustParseAddrPort(ProxyAddress)
		for _, scheme := range []string{"http", "https"} {
			options = append(options, fmt.Sprintf("-D%s.proxyHost=%s -D%s.proxyPort=%d", scheme, at.Addr(), scheme, at.Port()))
		}
	}
	if s.Trust != nil { // without a password, so that Java checks no digest
		options = append(options, "-Djavax.net.ssl.trustStore="+keystorePath, "-Djavax.net.ssl.trustStoreType=JKS")
	}
	return strings.TrimSpace(strings.Join(append(options, set), " "))
}

// keystore returns the certificates of a bundle as a Java KeyStore (JKS), version 2, which
// Java reads since 1.2 (sun.security.provider.JavaKeyStore). Its digest is for a password
// that is empty. Java does not check it without a password.
func keystore(bundle []byte) []byte {
	var certs [][]byte
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			certs = append(certs, block.Bytes)
		}
	}
	b := make([]byte, 0, len(bundle)/4*3) // the text of a certificate is longer
	number := func(n int) { b = binary.BigEndian.AppendUint32(b, uint32(n)) }
	text := func(s string) { b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	for _, n := range []int{0xfeedfeed, 2, len(certs)} {
		number(n)
	}
	for i, cert := range certs {
		number(2) // a trusted certificate
		text(strconv.Itoa(i))
		b = binary.BigEndian.AppendUint64(b, 0) // the time of its addition
		text("X.509")
		number(len(cert))
		b = append(b, cert...)
	}
	digest := sha1.New()
	digest.Write([]byte("Mighty Aphrodite"))
	digest.Write(b)
	return digest.Sum(b)
}
