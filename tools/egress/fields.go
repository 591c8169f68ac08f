package egress

import (
	"slices"
	"strings"
)

// tokenChars are the characters of a token (RFC 9110, section 5.6.2).
const tokenChars = "!#$%&'*+-.^_`|~0123456789" + "abcdefghijklmnopqrstuvwxyz" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// misread returns the name of a field that some servers take for the method or the path of a request; "" if it has none.
// Which rule covers such a request depends on the server.
func misread(fields map[string][]string) string {
	for name := range fields {
		lower := strings.ToLower(name)
		switch {
		// CGI and WSGI have one variable for X_A and X-A (RFC 3875, section 4.1.18), some servers also for X.A.
		case strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz0123456789-") != "",
			slices.Contains(misreadNames, lower),
			!slices.Contains(forwardedNames, lower) && slices.ContainsFunc(misreadPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }):
			return name
		}
	}
	return ""
}

var (
	misreadPrefixes = []string{
		"x-http-method", "x-method", // Rack, Symfony, Laravel, Express, OData
		"x-original-", "x-rewrite-", "x-override-", // IIS, Symfony, Zend
		"x-forwarded-",      // -Prefix: Spring, ASP.NET, Werkzeug; -Uri, -Path and -Method: what Traefik and nginx send to a service that authorises
		"x-envoy-original-", // Envoy
	}
	misreadNames = []string{
		"destination",                                                   // WebDAV (RFC 4918, section 10.3)
		"x-script-name", "x-request-uri", "x-request-url", "x-real-url", // WSGI, Tomcat, modules of nginx
		"x-real-uri", "x-proxy-url", "x-ms-original-url", "x-unencoded-url", "x-waws-unencoded-url", // Azure, iisnode
	}

	// forwardedNames say nothing of the method and the path.
	forwardedNames = []string{
		"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port", "x-forwarded-scheme", "x-forwarded-ssl",
		"x-forwarded-server", "x-forwarded-by", "x-original-for", "x-original-host", "x-original-proto",
	}
)
