package egress

import (
	"slices"
	"strings"
)

// tokenChars are the characters of a token (RFC 9110, section 5.6.2).
const tokenChars = "!#$%&'*+-.^_`|~0123456789" + "abcdefghijklmnopqrstuvwxyz" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// misread returns the name of a field that some servers take for the method or the path of a request; "" if it has none.
// Which rule covers such a request depends on the server. Names differ from program to program, and say what they are:
// a part of such a name ends with one of few words.
func misread(fields map[string][]string) string {
	for name := range fields {
		lower := strings.ToLower(name)
		switch {
		case slices.Contains(otherNames, lower) || strings.HasPrefix(lower, "x-stainless-"):
		// CGI and WSGI have one variable for X_A and X-A (RFC 3875, section 4.1.18), some servers also for X.A.
		case strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz0123456789-") != "",
			slices.ContainsFunc(misreadPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }),
			slices.ContainsFunc(strings.Split(lower, "-"), renames),
			slices.ContainsFunc(copies, func(c string) bool { return strings.Contains(lower, c) }):
			return name
		}
	}
	return ""
}

// renames reports whether a part of a field's name says method or path.
func renames(part string) bool {
	return slices.ContainsFunc(renaming, func(word string) bool { return strings.HasSuffix(part, word) })
}

var (
	renaming = []string{
		"method", "override", "path", "pathname", "pathinfo", "uri", "url", "rewrite", "rewritten", // Rack, Symfony, OData, IIS
		"route", "subrequest", "destination", // Vercel, Next.js; WebDAV (RFC 4918, section 10.3)
	}
	misreadPrefixes = []string{
		"x-original-", "x-forwarded-", // -Prefix: Spring, ASP.NET, Werkzeug
		"x-script-name", // WSGI
	}
	copies = []string{"copy-source", "copy-from", "rename-source"} // stores of objects read what is at that path

	// otherNames say nothing of the method and the path, as those of Anthropic's and OpenAI's clients: x-stainless-.
	otherNames = []string{
		"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port", "x-forwarded-scheme", "x-forwarded-ssl",
		"x-forwarded-server", "x-forwarded-by", "x-original-for", "x-original-host", "x-original-proto",
		"access-control-request-method", "hx-current-url", "next-url", "mcp-method", // of browsers, htmx, Next.js, MCP
	}
)
