package daemon

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// onlyAt refuses requests that were not sent to the address itself, as a browser
// sends them for a page whose name was made to lead here (DNS rebinding), and
// requests of pages from elsewhere.
func onlyAt(at netip.AddrPort, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := ""
		switch origins := r.Header.Values("Origin"); {
		case !namesUs(r.Host, at):
			why = fmt.Sprintf("Host is %.80q, not %s or localhost:%d: use one of these in the URL", r.Host, at, at.Port())
		case len(origins) > 1, len(origins) == 1 && !isOurPage(origins[0], at):
			why = fmt.Sprintf("Origin is %.80q: pages from elsewhere have no access", origins)
		case !isOurs(r.Header.Values("Sec-Fetch-Site")):
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

func isOurPage(origin string, at netip.AddrPort) bool {
	host, ok := strings.CutPrefix(origin, "http://")
	return ok && namesUs(host, at)
}

// isOurs reports whether a browser says that a page of ours, or its user, asks
// (Fetch Metadata, section 2.3). Other programs say nothing.
func isOurs(sites []string) bool {
	for _, site := range sites {
		if site != "same-origin" && site != "none" {
			return false
		}
	}
	return true
}
