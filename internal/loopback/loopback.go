// Package loopback restricts HTTP on the loopback interface to those who mean it: every process and every web page of
// the host can connect.
package loopback

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Check fails for an address that is not one of the loopback interface: what is said there is not encrypted.
func Check(flag, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s %q: want ADDRESS:PORT", flag, address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--%s %q: not on the loopback interface: put a proxy with TLS before it", flag, address)
	}
	return nil
}

// Only refuses requests that were not sent to the address itself, as a browser
// sends them for a page whose name was made to lead here (DNS rebinding), and
// requests of pages from elsewhere.
func Only(at netip.AddrPort, next http.Handler) http.Handler {
	return only("http", fmt.Sprintf("%s or localhost:%d", at, at.Port()), func(host string) bool { return namesUs(host, at) }, next)
}

// OnlyForwarded is Only for a unix socket to which a port of another host's loopback interface is forwarded (ssh -L): any
// port of that interface is the address.
func OnlyForwarded(next http.Handler) http.Handler {
	return only("http", "localhost or 127.0.0.1 with the port that is forwarded", func(host string) bool {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = strings.Trim(host, "[]") // port 80
		}
		return strings.EqualFold(name, "localhost") || name == "127.0.0.1" || name == "::1"
	}, next)
}

// OnlyTLS is Only for a server with TLS, on any address. ours reports whether a Host field names it, names says which do.
func OnlyTLS(names string, ours func(host string) bool, next http.Handler) http.Handler {
	return only("https", names, ours, next)
}

func only(scheme, names string, ours func(host string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := ""
		foreign := func(site string) bool { return site != "same-origin" && site != "none" }
		ourPage := func(origin string) bool {
			host, ok := strings.CutPrefix(origin, scheme+"://")
			return ok && ours(host)
		}
		switch origins := r.Header.Values("Origin"); {
		case !ours(r.Host):
			why = fmt.Sprintf("Host is %.80q, not %s: use one of these in the URL", r.Host, names)
		case len(origins) > 1, len(origins) == 1 && !ourPage(origins[0]):
			why = fmt.Sprintf("Origin is %.80q: pages from elsewhere have no access", origins)
		// A browser says that a page of ours, or its user, asks (Fetch Metadata, section 2.3). Other programs say nothing.
		case slices.ContainsFunc(r.Header.Values("Sec-Fetch-Site"), foreign):
			why = "Sec-Fetch-Site is of another site: pages from elsewhere have no access"
		}
		if why == "" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		http.Error(w, why, http.StatusForbidden)
	})
}

// namesUs reports whether a Host field is our address, or localhost with our port.
func namesUs(host string, at netip.AddrPort) bool {
	if at.Port() == 80 && !strings.HasSuffix(host, ":80") {
		host += ":80" // RFC 9110, section 4.2.1
	}
	return host == at.String() || strings.EqualFold(host, fmt.Sprintf("localhost:%d", at.Port()))
}
