package audit

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/quick"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// line returns the line of an event, without the nonce.
func line(e Event) []byte {
	head := appendHead(nil, e.Seq, e.Time)
	at := bytes.Index(head, []byte(`"salt":"`))
	return appendBody(append(head[:at:at], head[at+len(`"salt":"0123456789abcdef",`):]...), clean(e))
}

func TestLine(t *testing.T) {
	full := Event{
		Seq: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Event: KindFile,
		Agent: "a", Session: "s", Call: "c", Parent: "p", Op: "open", Path: "d/\n\"\\", Target: "t",
		Verdict: Violation, Rule: "r", RuleKind: "k", Outcome: "o", Errno: "EACCES", PID: 1, UID: new(uint32(0)),
		Bytes: 2, DurationUS: 3, Detail: "x", Decided: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)),
		Trace: "00-1", TraceState: "a=1",
	}
	want := `{"seq":7,"time":"2026-01-02T03:04:05.000000006Z","event":"file","agent":"a","session":"s","call":"c",` +
		`"parent":"p","op":"open","path":"d/\\x0a\"\\\\","target":"t","verdict":"violation","rule":"r","rule_kind":"k","outcome":"o",` +
		`"errno":"EACCES","pid":1,"uid":0,"bytes":2,"duration_us":3,"decided":"2026-01-02T02:04:05Z","trace":"00-1","trace_state":"a=1","detail":"x"}` + "\n"
	assert.Equal(t, want, string(line(full)))

	short := Event{Seq: 1, Time: full.Time, Event: KindDaemon, Raw: []byte("x")}
	assert.Equal(t, `{"seq":1,"time":"2026-01-02T03:04:05.000000006Z","event":"daemon"}`+"\n", string(line(short)))
}

// TestLineIsJSON checks that appendBody writes the bytes that encoding/json writes and reads.
func TestLineIsJSON(t *testing.T) {
	check := func(seq uint64, s [12]string, pid int, uid *uint32, n, us int64) bool {
		e := Event{
			Seq: seq, Time: time.Unix(rand.Int64N(1<<32), rand.Int64N(1e9)).UTC(), Event: s[0],
			Agent: s[1], Session: s[2], Call: s[3], Parent: s[4], Op: s[5], Path: s[6], Target: s[7],
			Verdict: Verdict(s[8]), Rule: s[9], RuleKind: s[11], Outcome: s[10], Errno: s[11], PID: pid, UID: uid,
			Bytes: n, DurationUS: us, Decided: time.Unix(0, n).UTC(), Detail: s[0] + s[1],
			Trace: s[2], TraceState: s[3],
		}
		got := line(e)
		var back Event
		require.NoError(t, json.Unmarshal(got, &back), string(got))
		require.Equal(t, clean(e), back)
		var same bytes.Buffer
		enc := json.NewEncoder(&same)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(back))
		require.Equal(t, same.String(), string(got))
		require.True(t, utf8.Valid(got))
		for _, r := range strings.TrimSuffix(string(got), "\n") {
			require.False(t, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp), "%U in %s", r, got)
		}
		return true
	}
	require.NoError(t, quick.Check(check, &quick.Config{MaxCount: 2000}))
}

func TestLineIsBounded(t *testing.T) {
	long := strings.Repeat("\"", 1<<20)
	e := Event{
		Event: long, Agent: long, Session: long, Call: long, Parent: long, Op: long, Path: long, Target: long,
		Verdict: Verdict(long), Rule: long, RuleKind: long, Outcome: long, Errno: long, Detail: long,
		Trace: long, TraceState: long,
	}
	assert.Less(t, len(line(e)), 24<<10)
	assert.Contains(t, string(line(e)), `\\cut{`)
}

func TestRedact(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"nothing":         {"opened agents/a/notes.txt", "opened agents/a/notes.txt"},
		"segments":        {"GET https://h/a;token=x/b;token=y;secret=z?q#f", "GET https://h/a;token=[redacted]/b;token=[redacted]?q#f"},
		"a query":         {"https://h/x?a;b=1&token=x/y", "https://h/x?a;b=1&token=[redacted]"},
		"an edge":         {"https://h/;token=x\U0010fffey/z a\U0010fffeb", "https://h/;token=[redacted]/z a\ufffdb"},
		"AWS":             {"id AKIAIOSFODNN7EXAMPLE.", "id [redacted]."},
		"GitHub":          {"ghp_" + strings.Repeat("a1", 18), "[redacted]"},
		"GitHub, fine":    {"x github_pat_" + strings.Repeat("A", 30), "x [redacted]"},
		"GitLab":          {"glpat-" + strings.Repeat("a", 20), "[redacted]"},
		"OpenAI":          {"use sk-proj-abcdefghijklmnop now", "use [redacted] now"},
		"not a key":       {"task-abcdefghijklmnopqrst", "task-abcdefghijklmnopqrst"},
		"Stripe":          {"sk_live_abcdefghijkl", "[redacted]"},
		"Slack":           {"xoxb-1234567890-abc", "[redacted]"},
		"bearer":          {"curl -H 'X: Bearer abc.def-ghi'", "curl -H 'X: Bearer [redacted]'"},
		"authorization":   {"Authorization: Bearer abc def", "Authorization: Bearer [redacted] def"},
		"password":        {"user=bob password=hunter2&x=1", "user=bob password=[redacted]&x=1"},
		"upper case":      {"DB_PASSWORD=hunter2 cmd", "DB_PASSWORD=[redacted] cmd"},
		"prefixed key":    {"AWS_SECRET_ACCESS_KEY = wJalr/K7 x", "AWS_SECRET_ACCESS_KEY = [redacted] x"},
		"quoted":          {`password="two words" x`, `password=[redacted] x`},
		"quote in quotes": {`{"password":"a\"b c","x":1}`, `{"password":[redacted],"x":1}`},
		"JSON in JSON":    {`"{\"api_key\":\"a b\",\"x\":1}"`, `"{\"api_key\":[redacted],\"x\":1}"`},
		"unclosed":        {`secret: "a b`, `secret: [redacted]`},
		"flag":            {"login --password hunter2 now", "login --password [redacted] now"},
		"URL":             {"https://bob:p@ss@host/x", "https://bob:[redacted]@host/x"},
		"URL without":     {"https://host:80/x", "https://host:80/x"},
		"JWT":             {"t eyJhbGciOi.eyJzdWIi.sig-_ x", "t [redacted] x"},
		"a cut key":       {"-----BEGIN PRIVATE KEY-----\nMIIab+/=\n; rm -rf (all)", "[redacted]; rm -rf (all)"},
		"no key at all":   {"x -----BEGIN PRIVATE KEY----- | rm -rf /srv", "x [redacted]| rm -rf /srv"},
		"words after it":  {"x -----BEGIN PRIVATE KEY----- cat /etc/passwd -----END PRIVATE KEY-----", "x [redacted]/etc/passwd -----END PRIVATE KEY-----"},
		"a whole key":     {"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n" + strings.Repeat("Ab+/", 16) + "\nQ==\n-----END RSA PRIVATE KEY-----\ny", "[redacted]\ny"},
		"a key in JSON":   {`"-----BEGIN PRIVATE KEY-----\n` + strings.Repeat("Ab+/", 16) + `\nQ==\n-----END PRIVATE KEY-----\n" y`, `"[redacted]\n" y`},
		"path parameter":  {"GET https://h/a;token=x/admin/delete?y=1", "GET https://h/a;token=[redacted]/admin/delete?y=1"},
		"two parameters":  {"GET https://h/a;token=x/b;secret=y/c", "GET https://h/a;token=[redacted]/b;secret=[redacted]/c"},
		"after a command": {"cd x;TOKEN=ab/cd run", "cd x;TOKEN=[redacted] run"},
		"in a query":      {"GET https://h/a?token=ab/cd&x=1", "GET https://h/a?token=[redacted]&x=1"},
		"private key":     {"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- x", "[redacted] x"},
		"a missing one":   {"a.md:3: env: API_KEY names ${MY_TOKEN}, which is not set: set it", "a.md:3: env: API_KEY names ${MY_TOKEN}, which is not set: set it"},
		"half a key":      {"a -----BEGIN PRIVATE KEY-----\nMII", "a [redacted]"},
		"_PASS":           {"export DB_PASS=hunter2 PGPASS='a b' x", "export DB_PASS=[redacted] PGPASS=[redacted] x"},
		"pass":            {`{"pass":"a b","x":1} --pass hunter2 y`, `{"pass":[redacted],"x":1} --pass [redacted] y`},
		"not a pass":      {"compass=n bypass=1 passed=3 pass: 4 PASS=5 passes: 2", "compass=n bypass=1 passed=3 pass: [redacted] PASS=[redacted] passes: 2"},
		"URL with token":  {"git clone https://tokenxyz@github.com/x ok", "git clone https://[redacted]@github.com/x ok"},
		"token as user":   {"https://abcxyz:x-oauth-basic@h/ https://abcxyz:@h/", "https://[redacted]@h/ https://[redacted]@h/"},
		"redis-cli":       {"redis-cli -h x -a hunter2 get k", "redis-cli -h x -a [redacted] get k"},
		"curl, lines":     {"curl 'https://x?a=1&b=2' \\\n -sSu a:b", "curl 'https://x?a=1&b=2' \\\n -sSu a:[redacted]"},
		"URL by ssh":      {"ssh://git@host/x git@host:x", "ssh://git@host/x git@host:x"},
		"@ in a path":     {"https://host/@x/y@1 https://host?a=b@c https://host:80/a@b", "https://host/@x/y@1 https://host?a=b@c https://host:80/a@b"},
		"mysql":           {"mysql -uroot -phunter2 db; ls -p x", "mysql -uroot -p[redacted] db; ls -p x"},
		"mysql by path":   {"/usr/bin/mysqldump --opt -h db '-phunter 2' db", "/usr/bin/mysqldump --opt -h db '-p[redacted]' db"},
		"mysql quoted":    {`mysqladmin -p"hun ter2" ping; mysql -p db`, `mysqladmin -p[redacted] ping; mysql -p db`},
		"mysql, no -p":    {"mysql -p db; mkdir -p a; ls -p", "mysql -p db; mkdir -p a; ls -p"},
		"sshpass":         {"sshpass -p hunter2 ssh -p 22 x; sshpass -phunter3 y", "sshpass -p [redacted] ssh -p 22 x; sshpass -p[redacted] y"},
		"curl":            {"curl -sS -u admin:hunter2 https://x", "curl -sS -u admin:[redacted] https://x"},
		"curl, together":  {"curl -uadmin:hunter2 x; curl --user 'a:b c' y; curl --proxy-user=a:b z -u c:d", "curl -uadmin:[redacted] x; curl --user 'a:[redacted]' y; curl --proxy-user=a:[redacted] z -u c:[redacted]"},
		"not curl's":      {"date -u +%H:%M; docker run -u 1000:1000 x; sort -u a:b", "date -u +%H:%M; docker run -u 1000:1000 x; sort -u a:b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, redact(tc.text))
			e := clean(Event{Path: tc.text, Target: tc.text, Detail: tc.text})
			assert.Equal(t, Escape(tc.text), e.Path, "a path is proof")
			assert.Equal(t, Escape(tc.want), e.Target)
			assert.Equal(t, Escape(tc.want), e.Detail)
		})
	}
}

// TestRedactRequest: what looks like a secret hides no more of a request than its component of the path.
func TestRedactRequest(t *testing.T) {
	for target, want := range map[string]string{
		"GET https://h/a;token=x/admin/delete":     "GET https://h/a;token=[redacted]/admin/delete",
		"GET https://h/token=x/admin/delete":       "GET https://h/token=[redacted]/admin/delete",
		"GET https://h/token='x/admin/delete":      "GET https://h/token=[redacted]/admin/delete",
		"GET https://h/'/password:x/admin/delete":  "GET https://h/'/password:[redacted]/admin/delete",
		"GET https://h/a/hunter:2/x@admin/delete":  "GET https://h/a/hunter:2/x@admin/delete",
		"GET https://h/ghp_aaaaaaaaaaaaaaaaaaaa/a": "GET https://h/[redacted]/a",
		"h:8443": "h:8443",
	} {
		assert.Equal(t, want, clean(Event{Event: KindNetwork, Target: target}).Target)
	}
}

func TestSecretIsRedactedBeforeTheCut(t *testing.T) {
	e := clean(Event{Detail: strings.Repeat("a", 100) + " ghp_" + strings.Repeat("S", 400) + " " + strings.Repeat("b", 400)})
	assert.NotContains(t, e.Detail, "S")
}

// TestRedactWork: a text takes time in proportion to its length: an agent chooses the texts of its calls.
func TestRedactWork(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, part := range []string{";token=a/", "://;token=a", "://x;pass=", "://;curl/", ";a"} {
		cost := func(length int) int64 { // nanoseconds of this thread: what else the machine does is not counted
			text := "curl key pass https://h/;" + strings.Repeat(part, length/len(part))
			var began, ended unix.Timespec
			require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &began))
			text = redact(text)
			require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ended))
			assert.NotContains(t, text, edge)
			return ended.Nano() - began.Nano()
		}
		few, many := cost(10_000), cost(100_000)
		assert.Less(t, many, 30*few, part) // in proportion to the square it takes 100 times as long
	}
}
