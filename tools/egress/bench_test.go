package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/network"
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
	for name, rules := range map[string][]network.HostRule{"direct": nil, "tunnel": {rule}, "intercepted": {intercept}, "credential": {secret}} {
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

// BenchmarkNewTunnel measures a request on a new connection in this one process: directly, through a proxy that does nothing but CONNECT,
// and through a tunnel, in turn. Its metrics are the medians' ratios to direct.
func BenchmarkNewTunnel(b *testing.B) {
	rule, _ := host(b, "good.example", true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") })
	l, _ := intercepting(b, []network.HostRule{rule}, func(*Options, *Tenant) {})
	server := rule.Address.String()
	config := &tls.Config{RootCAs: authorityPool(), ServerName: "good.example", NextProtos: []string{"http/1.1"}}
	request := func(proxy string) {
		c, err := net.Dial("tcp", proxy)
		require.NoError(b, err)
		defer c.Close()
		if proxy != server {
			fmt.Fprint(c, "CONNECT good.example:443 HTTP/1.1\r\nHost: good.example:443\r\n\r\n")
			answer := make([]byte, 1<<10)
			n, err := c.Read(answer)
			require.NoError(b, err)
			require.Contains(b, string(answer[:n]), " 200 ")
		}
		secured := tls.Client(c, config)
		fmt.Fprint(secured, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(secured), nil)
		require.NoError(b, err)
		res.Body.Close()
	}
	sides := []string{server, bareProxy(b, server), l.addr}
	took := make([][]time.Duration, len(sides))
	for b.Loop() {
		for i, proxy := range sides {
			began := time.Now()
			request(proxy)
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	median := func(i int) float64 { return float64(took[i][len(took[i])/2]) }
	b.ReportMetric(median(1)/median(0), "bare/direct")
	b.ReportMetric(median(2)/median(0), "tunnel/direct")
}

// bareProxy is a proxy that connects to one server, whatever is asked.
func bareProxy(b *testing.B, server string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				up, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer up.Close()
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
				go func() { _, _ = io.Copy(up, c) }()
				_, _ = io.Copy(c, up)
			}()
		}
	}()
	return l.Addr().String()
}
