package audit

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const redacted = "[redacted]"

// A secret is a pattern and its replacement. redact tries the pattern only on text that contains one of the words in
// lower case: a substring search is cheap, a regular expression costs microseconds.
type secret struct {
	words   []string
	pattern func() *regexp.Regexp
	with    string
}

// compiled compiles a pattern at its first use: every start of the program would wait for all of them.
func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

const (
	keyName  = `(?:[\w-]*(?:passw|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization|cookie)[\w-]*|[\w-]*(?:\b|_|pg|db|user|root)pass\b)`
	keyValue = `(?:"(?:[^"\\]|\\.)*"?|\\+"[^"]*"?|'[^']*'?|[^\s&\x{10fffe}]+)`

	// pemKey matches a private key, also one that was cut off. Words that follow its head are evidence: only long ones and
	// the last are its lines.
	pemKey = `-----BEGIN [A-Z ]*PRIVATE KEY-----` + pemSpace + `(?:(?:Proc-Type|DEK-Info): [\w,-]+` + pemSpace + `)*` +
		`(?:[\w+/=]{16,}` + pemSpace + `)*[\w+/=]*` + pemSpace + `(?:-----END [A-Z ]*PRIVATE KEY-----)?`
	pemSpace = `(?:\s|\\+[nrt])*`

	// login and glued match the value of a program's option. Only a shell could say where the program's own options
	// end.
	login = `(?:('[^':]*:)[^']+|("[^":]*:)[^"]+|([^\s:"']*:)` + keyValue + `)`
	glued = `(?:('-p)[^']+|("-p)[^"]+|(-p)` + keyValue + `)`
	glues = "${1}${2}${3}${4}" + redacted
)

var keyWords = []string{"pass", "pwd", "secret", "token", "key", "credential", "authorization", "cookie"}

// secrets prefers false positives: it redacts any value after the name of a credential.
var secrets = []secret{
	{[]string{"private key"}, compiled(pemKey), redacted},
	{[]string{"bearer", "basic"}, compiled(`(?i)\b(Bearer|Basic)\s+[\w.~+/=-]{6,}`), "${1} " + redacted},
	{keyWords, compiled(`(?is)(` + keyName + `[\\"']*\s*[=:]\s*(?:(?:Bearer|Basic|Token)\s+)?)` + keyValue), "${1}" + redacted},
	{keyWords, compiled(`(?is)(--` + keyName + `\s+)` + keyValue), "${1}" + redacted},
	{[]string{"://"}, compiled(`(?i)(https?://)[^\s/:@?#]+(?::(?:x-oauth-basic)?)?@`), "${1}" + redacted + "@"}, // a token without a password
	{[]string{"://"}, compiled(`(://[^\s/:@]*:)[^\s/]+@`), "${1}" + redacted + "@"},
	{[]string{"curl"}, compiled(`(?s)(\bcurl\b.*?\s(?:-[A-Za-z]*u\s*|--user[=\s]\s*))` + login), glues},
	{[]string{"curl"}, compiled(`(?s)(\bcurl\b.*?\s(?:-[A-Za-z]*U\s*|--proxy-user[=\s]\s*))` + login), glues},
	{[]string{"mysql", "mariadb"}, compiled(`(?s)(\b(?:mysql|mariadb).*?\s)` + glued), glues},
	{[]string{"sshpass", "redis-cli"}, compiled(`(?s)(\b(?:sshpass\b.*?\s-p|redis-cli\b.*?\s-a)\s*)` + keyValue), "${1}" + redacted},
	{[]string{"akia", "asia"}, compiled(`A[KS]IA[0-9A-Z]{12,}`), redacted},                                                 // AWS
	{[]string{"gh", "github_pat_", "glpat-"}, compiled(`gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}`), redacted}, // GitHub, GitLab
	// OpenAI, Anthropic, Stripe
	{[]string{"sk-", "k_live_", "k_test_"}, compiled(`\bsk-[\w-]{16,}|[rs]k_(?:live|test)_\w{10,}`), redacted},
	// Slack, Google, npm, Hugging Face
	{[]string{"xox", "aiza", "npm_", "hf_"}, compiled(`xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|(?:npm|hf)_\w{30,}`), redacted},
	// JSON web token, RFC 7519
	{[]string{"eyj"}, compiled(`\beyJ[\w-]+\.[\w-]+\.[\w-]*`), redacted},
}

// edge ends a value. No text has it.
const edge = "\U0010fffe"

// parameter matches the name of a parameter of a URL's path.
var parameter = compiled(`(?is)^` + keyName + `[\\"']*\s*[=:]`)

// maxParameter limits the name of a parameter, in bytes. A longer one ends where the URL does.
const maxParameter = 128

// edged returns s with an edge where the segment of a parameter in the path of a URL ends: ";token=x/admin", RFC 3986, 3.3. It takes
// time in proportion to s.
func edged(s string) string {
	s = strings.ReplaceAll(s, edge, "\ufffd")
	if !strings.Contains(s, "://") || !strings.Contains(s, ";") {
		return s
	}
	var b strings.Builder
	written, end, url := 0, 0, false // end: of the segment
	for i := range len(s) {
		switch c := s[i]; {
		case c == ':' && strings.HasPrefix(s[i:], "://"):
			url = true
		case strings.IndexByte(" \t\n\"'", c) >= 0:
			url = false
		case c == ';' && url:
			if end <= i {
				if end = i + strings.IndexAny(s[i:], "/?#& \t\n\v\f\r"); end < i {
					end = len(s)
				}
			}
			if end < len(s) && end > written && strings.IndexByte("/?#", s[end]) >= 0 && parameter().MatchString(s[i+1:min(end, i+1+maxParameter)]) {
				b.WriteString(s[written:end] + edge)
				written = end
			}
		}
	}
	return b.String() + s[written:]
}

// redact returns s with everything that looks like a secret replaced.
func redact(s string) string {
	if len(s) < 6 {
		return s
	}
	s = edged(s)
	lower := strings.ToLower(s)
	for _, secret := range secrets {
		if slices.ContainsFunc(secret.words, func(w string) bool { return strings.Contains(lower, w) }) {
			s = secret.pattern().ReplaceAllString(s, secret.with)
		}
	}
	return strings.ReplaceAll(s, edge, "")
}

// redactEach is redact for each component of a path: an agent cannot hide one behind another.
func redactEach(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = redact(part)
	}
	return strings.Join(parts, "/")
}
