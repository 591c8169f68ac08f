package daemon

import (
	"bufio"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// got counts events by their numbers.
type got struct {
	mu     sync.Mutex
	events map[uint64]int
}

func (g *got) add(seq uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.events == nil {
		g.events = map[uint64]int{}
	}
	g.events[seq]++
}

// has reports whether all events of a log are there.
func (g *got) has(events []audit.Event) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range events {
		if g.events[e.Seq] == 0 {
			return false
		}
	}
	return len(events) > 0
}

func (g *got) count() (events, copies int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.events {
		copies += n
	}
	return len(g.events), copies
}

// message is RFC 5424, section 6, of what scopefs sends.
var message = regexp.MustCompile(`^<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([!-~]{1,255}) scopefs - ([!-~]{1,32}) ` +
	`\[scopefs@32473((?: [a-z_]+="(?:[^"\\\]]|\\["\\\]])*")*)\] (?:\xef\xbb\xbf)?(\{.*\})$`)

// readSyslog calls took with messages that have their lengths until the end, as a receiver that takes its time for each.
func readSyslog(t *testing.T, conn io.Reader, took func(text []byte)) {
	in := bufio.NewReaderSize(conn, 512)
	for {
		length, err := in.ReadString(' ')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
		if !assert.NoError(t, err) {
			return
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(in, text); err != nil {
			return
		}
		took(text)
	}
}

func (g *got) parse(t *testing.T, text []byte) {
	parts := message.FindSubmatch(text)
	if !assert.NotNil(t, parts, "%q", text) {
		return
	}
	var e audit.Event
	assert.NoError(t, json.Unmarshal(parts[6], &e))
	assert.Contains(t, string(parts[5]), fmt.Sprintf(` seq="%d"`, e.Seq))
	assert.Equal(t, e.Event, string(parts[4]))
	assert.Equal(t, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), string(parts[2]))
	want := map[audit.Verdict]string{audit.Deny: "108", audit.Violation: "107"}[e.Verdict]
	if want != "" {
		assert.Equal(t, want, string(parts[1]))
	}
	g.add(e.Seq)
}

// syslogd is a receiver on a socket. kill resets its connections and loses what it has not parsed.
type syslogd struct {
	got
	t       *testing.T
	address net.Addr
	tls     *tls.Config
	hang    atomic.Bool       // accept, and read nothing
	took    func(text []byte) // a message; nil: it is an event

	lock     sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	dead     chan struct{} // closed by kill
	all      sync.WaitGroup
}

func (s *syslogd) start() {
	s.t.Helper()
	if s.address.Network() == "unix" {
		_ = os.Remove(s.address.String())
	}
	l, err := net.Listen(s.address.Network(), s.address.String())
	require.NoError(s.t, err)
	s.lock.Lock()
	defer s.lock.Unlock()
	dead := make(chan struct{})
	s.address, s.listener, s.conns, s.dead = l.Addr(), l, map[net.Conn]bool{}, dead
	s.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.lock.Lock()
			s.conns[conn] = true
			s.lock.Unlock()
			s.all.Go(func() { s.serve(conn, dead) })
		}
	})
}

func (s *syslogd) serve(conn net.Conn, dead <-chan struct{}) {
	defer func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.conns, conn)
		conn.Close()
	}()
	if s.hang.Load() {
		<-dead
	}
	if s.tls != nil {
		conn = tls.Server(conn, s.tls)
		defer conn.Close()
	}
	took := s.took
	if took == nil {
		took = func(text []byte) { s.parse(s.t, text) }
	}
	readSyslog(s.t, conn, took)
}

func (s *syslogd) kill() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.listener.Close()
	close(s.dead)
	for conn := range s.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
	}
}

// collector is a receiver of OTLP/HTTP.
type collector struct {
	got
	server *httptest.Server
	status atomic.Int32 // to answer; 0: 200
	most   atomic.Int32 // log records of a request; 0: any number
	asked  atomic.Int32
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asked.Add(1)
		assert.Equal(t, "/v1/logs", r.URL.Path)
		assert.Equal(t, "application/x-protobuf", r.Header.Get("Content-Type"))
		assert.Equal(t, "Bearer s3cret", r.Header.Get("Authorization"))
		assert.Equal(t, "acme", r.Header.Get("X-Tenant"))
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			return
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return
		}
		var request logs.LogsData
		assert.NoError(t, proto.Unmarshal(text, &request))
		var seqs []uint64
		for _, resource := range request.ResourceLogs {
			for _, scope := range resource.ScopeLogs {
				for _, record := range scope.LogRecords {
					var e audit.Event
					assert.NoError(t, json.Unmarshal([]byte(record.Body.GetStringValue()), &e))
					assert.Equal(t, uint64(e.Time.UnixNano()), record.TimeUnixNano)
					assert.Equal(t, "scopefs."+e.Event, record.EventName)
					seqs = append(seqs, e.Seq)
				}
			}
		}
		if status := c.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		if most := int(c.most.Load()); most > 0 && len(seqs) > most {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		for _, seq := range seqs {
			c.add(seq)
		}
	}))
	t.Cleanup(c.server.Close)
	return c
}

// exporters returns the processes of the streams of a host's daemon.
func exporters(h *harness.Host) (pids []int) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err != nil || to != harness.Program+"-export" {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(exe, "/")[2])
		if parent(pid) == h.Cmd.Process.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// deny has n events recorded.
func deny(t *testing.T, h *harness.Host, n int) {
	for range n {
		f, err := os.OpenFile(filepath.Join(h.View("a"), "fixed", "x"), os.O_WRONLY, 0)
		if !assert.Error(t, err) {
			f.Close()
		}
	}
}

const streamAgent = "view: {paths: {'fixed/**': read}, changes: direct}\ntools: [bash]"

// TestStreams kills receivers, the processes of streams and the daemon while events are recorded: each receiver gets every
// event, and repeated ones only around kills.
func TestStreams(t *testing.T) {
	chain, roots := servingCertificate(t)
	t.Setenv("SSL_CERT_FILE", roots)
	t.Setenv("STREAM_SECRET", "s3cret")
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	plain := &syslogd{t: t, address: local}
	secure := &syslogd{t: t, address: local, tls: &tls.Config{Certificates: []tls.Certificate{chain}}}
	unix := &syslogd{t: t, address: &net.UnixAddr{Name: filepath.Join(t.TempDir(), "log"), Net: "unix"}}
	daemons := []*syslogd{plain, secure, unix}
	for _, one := range daemons {
		one.start()
		defer one.all.Wait()
		defer one.kill()
	}
	otel := newCollector(t)
	otel.most.Store(100)

	h := harness.LayOut(t, map[string]string{"a": streamAgent})
	harness.Plant(t, h.Scope("a"), "fixed/x=1")
	h.Put("scopefs.yaml", fmt.Sprintf(`log:
  streams:
    - {name: plain, syslog: 'tcp://%s', from: start}
    - {name: secure, syslog: 'tls://localhost:%d', from: start}
    - {name: unix, syslog: 'unix://%s', from: start}
    - {name: otel, otlp: '%s', headers: {X-Tenant: acme}, prefix: 'Bearer ', credential: {env: STREAM_SECRET}, from: start}
`, plain.address, secure.address.(*net.TCPAddr).Port, unix.address, otel.server.URL))
	h.Start()
	h.Eventually("all streams have a process", func() bool { return len(exporters(h)) == 4 })

	rounds := 3
	for round := range rounds {
		var load sync.WaitGroup
		load.Go(func() { deny(t, h, 700) })
		switch round {
		case 0:
			for _, one := range daemons {
				one.kill()
				one.start()
			}
			otel.status.Store(http.StatusServiceUnavailable)
			h.Eventually("the collector refuses", func() bool { return otel.asked.Load() > 2 })
			otel.status.Store(0)
		case 1:
			for _, pid := range exporters(h) {
				assert.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		load.Wait()
		if round == 2 {
			h.Kill()
			h.Start()
		}
	}
	all := h.Events("")
	assert.Greater(t, len(all), 2000)
	for name, g := range map[string]*got{"plain": &plain.got, "secure": &secure.got, "unix": &unix.got, "otel": &otel.got} {
		h.Eventually(name+" has every event", func() bool { return g.has(all) })
		events, copies := g.count()
		t.Logf("%s: %d events, %d copies", name, events, copies-events)
		assert.Less(t, copies-events, 3500, name)
	}
	h.Eventually("ps says so", func() bool {
		return len(regexp.MustCompile(`(?m)^(plain|secure|unix|otel) +sends +\d+ +0 +0s`).FindAllString(h.Must("ps"), -1)) == 4
	})
	h.Eventually("what streams send does not become events", func() bool {
		before := len(h.Events(""))
		time.Sleep(time.Second)
		return len(h.Events("")) == before
	})
}

// servingCertificate returns a certificate for localhost, and the file of its authority.
func servingCertificate(t *testing.T) (tls.Certificate, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// TestStreamLate: a receiver that hangs delays neither calls nor the log. It is late, once, and back when it has the events.
func TestStreamLate(t *testing.T) {
	t.Parallel()
	receiver := &syslogd{t: t, address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	receiver.hang.Store(true)
	receiver.start()
	defer receiver.all.Wait()
	defer receiver.kill()
	h := harness.LayOut(t, map[string]string{"a": streamAgent})
	harness.Plant(t, h.Scope("a"), "fixed/x=1")
	h.Put("scopefs.yaml", fmt.Sprintf("log: {streams: [{name: siem, syslog: 'tcp://%s', from: start, late: 10s}]}\n", receiver.address))
	h.Start()
	outcomes := func(outcome string) (n int) {
		for _, e := range h.Events("") {
			if e.Event == audit.KindAudit && e.Outcome == outcome && strings.HasPrefix(e.Detail, "siem: ") {
				n++
			}
		}
		return n
	}
	h.Eventually("the receiver hangs", func() bool { return regexp.MustCompile(`(?m)^siem +\w+ +0 +[1-9]`).MatchString(h.Must("ps")) })
	began := time.Now()
	deny(t, h, 500)
	assert.Less(t, time.Since(began), 10*time.Second, "before the stream gives the first attempt up")
	h.Eventually("an alarm", func() bool { return outcomes(audit.OutcomeStreamLate) == 1 })
	h.Eventually("ps and metrics say so", func() bool {
		return regexp.MustCompile(`(?m)^siem +late +0 +5\d\d +\d+s`).MatchString(h.Must("ps")) &&
			strings.Contains(h.Must("metrics"), `scopefs_stream_late{name="siem"} 1`)
	})
	receiver.hang.Store(false)
	receiver.kill()
	receiver.start()
	h.Eventually("it is back", func() bool { return outcomes(audit.OutcomeStreamBack) == 1 && receiver.has(h.Events("")) })
	assert.Equal(t, 1, outcomes(audit.OutcomeStreamLate))
}

// TestStreamConfined: the process of a stream has the log without its key, its own cursor, and no network of its own.
func TestStreamConfined(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": streamAgent})
	h.Put("scopefs.yaml", "log: {streams: [{name: siem, syslog: 'tcp://127.0.0.1:9', from: start}]}\n")
	h.Start()
	h.Eventually("it has begun", func() bool {
		return regexp.MustCompile(`(?m)^siem +retries `).MatchString(h.Must("ps"))
	})
	pids := exporters(h)
	require.Len(t, pids, 1)
	of := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pids[0], name) }
	top, err := os.ReadDir(of("root"))
	require.NoError(t, err)
	names := []string{}
	for _, entry := range top {
		names = append(names, entry.Name())
	}
	assert.Equal(t, []string{"log", "nothing", "stream"}, names)
	key, err := os.ReadFile(of("root/log/key"))
	require.NoError(t, err)
	assert.Empty(t, key, "the log's key is its process's alone")
	own, err := os.ReadFile(filepath.Join(h.Base, "state", "audit", "key"))
	require.NoError(t, err)
	assert.NotEmpty(t, own)
	assert.ErrorIs(t, os.WriteFile(of("root/log/x"), nil, 0o600), syscall.EROFS)
	status := harness.ReadAll(t, of("status"))
	assert.Regexp(t, `(?m)^CapEff:\s0+$`, status)
	assert.Regexp(t, `(?m)^Seccomp:\s2$`, status)
	assert.Regexp(t, `(?m)^NoNewPrivs:\s1$`, status)
	links := harness.ReadAll(t, of("net/dev"))
	assert.Equal(t, 3, strings.Count(links, "\n"), "lo alone: %s", links)
}
