package egress

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// BenchmarkProxy measures a request on a connection that is open, and a download,
// directly, through a tunnel, intercepted, and with a credential looked for.
func BenchmarkProxy(b *testing.B) {
	rule, _ := host(b, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("size"))
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for buf := make([]byte, 64<<10); size > 0; size -= len(buf) {
			if _, err := w.Write(buf[:min(size, len(buf))]); err != nil {
				return
			}
		}
	})
	intercept, secret := rule, rule
	intercept.Intercept = true
	secret.Secret = "key"
	secrets := func(_ *Options, c *Tenant) {
		c.Secrets = func() map[string]Secret {
			return map[string]Secret{"key": {Placeholder: placeholder, Read: fixedSecret(b)}}
		}
	}
	hosts := &tls.Config{RootCAs: authorityPool(), NextProtos: []string{"http/1.1"}}
	for name, rules := range map[string][]scope.HostRule{"direct": nil, "tunnel": {rule}, "intercepted": {intercept}, "credential": {secret}} {
		transport := &http.Transport{TLSClientConfig: hosts.Clone()}
		target := "https://good.example/?size="
		if rules == nil {
			transport.TLSClientConfig.ServerName = "good.example"
			target = "https://" + rule.Address.String() + "/?size="
		} else {
			l, roots := intercepting(b, rules, secrets)
			transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: l.addr})
			if name != "tunnel" {
				transport.TLSClientConfig.RootCAs = roots.RootCAs
			}
		}
		client := &http.Client{Transport: transport}
		for size, what := range map[int]string{0: "request", 64 << 20: "64MiB"} {
			b.Run(what+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					res, err := client.Get(target + strconv.Itoa(size))
					require.NoError(b, err)
					n, err := io.Copy(io.Discard, res.Body)
					require.NoError(b, err)
					require.EqualValues(b, size, n)
					res.Body.Close()
				}
			})
		}
		transport.CloseIdleConnections()
	}
}
