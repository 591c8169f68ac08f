package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// The sizes of BenchmarkConsole. SCOPEFS_CONSOLE_SMOKE makes them small; then it measures nothing.
type benchSizes struct {
	agents, calls, denials, waiting, rounds, turns int
	phase                                          time.Duration
}

func sizes() benchSizes {
	if os.Getenv("SCOPEFS_CONSOLE_SMOKE") != "" {
		return benchSizes{20, 20, 20, 10, 2, 1, 2 * time.Second}
	}
	return benchSizes{1000, 4000, 2000, 50, 10, 3, 10 * time.Second}
}

// BenchmarkConsole prints how long pages take with many agents and events, what they weigh, and what viewers cost.
func BenchmarkConsole(b *testing.B) {
	n := sizes()
	agents := map[string]string{"bob": "tools: [bash, read_file, write_file]\nview: {paths: {'secret/**': read}}"}
	const asking = 10
	for i := range n.agents - 1 {
		front := ""
		if i < asking {
			front = harness.AskWrite
		}
		agents[fmt.Sprintf("agent-%04d", i)] = front
	}
	h := harness.LayOut(b, agents)
	h.Timeout = time.Hour
	h.Put("scopefs.yaml", "approvals: {wait: 15m}\n")
	harness.Plant(b, h.Scope("bob"), "a.txt=1", "secret/")
	h.Start()
	h.Must("call", "--agent", "bob", "bash", fmt.Sprintf("command=for i in $(seq %d); do : >secret/f$((i %% 200)); done 2>/dev/null; true", n.denials))
	caller := h.Dial("bob").Greet()
	calls(b, caller, 0, n.calls)
	for i := range asking {
		agent := fmt.Sprintf("agent-%04d", i)
		harness.Plant(b, h.Scope(agent), "main.go="+strings.Repeat("// a line of a file\n", 200))
		u := h.Connect(agent)
		for k := range n.waiting / asking {
			_ = u.Begin(b.Context(), "write_file", args{"path": "main.go", "content": strings.Repeat("// a line of a file\n", 100) + fmt.Sprintf("// change %d\n", k) + strings.Repeat("// a line of a file\n", 100)})
		}
	}
	h.Eventually("the calls wait", func() bool { return strings.Count(h.Must("approvals"), "write_file") >= n.waiting })
	s := serve(b, h)
	denied := h.Must("audit", "--json", "--denied", "--agent", "bob")
	events := strings.Count(h.Must("audit", "--json"), "\n")
	seq := regexp.MustCompile(`"seq":(\d+)`).FindStringSubmatch(denied[strings.LastIndex(strings.TrimSpace(denied), "\n")+1:])[1]
	session := regexp.MustCompile(`"session":"([^"]+)"`).FindStringSubmatch(denied)[1]
	pages := []struct{ name, path string }{
		{"Now", "/"}, {"Inbox", "/inbox"}, {"Denials", "/denials"}, {"Changes", "/changes"}, {"Definitions", "/definitions"},
		{"a definition", "/definitions/bob"}, {"Log", "/log"}, {"Log, of bob", "/log?agent=bob"}, {"an event", "/log/" + seq}, {"a session", "/sessions/" + session}, {"Charts", "/charts"},
	}
	br := browse(b, s.link, 1280, 900)
	br.reads("Agents")
	cookies, err := chromedp.Run(br.ctx, func(ctx context.Context, t *chromedp.Target) (network.GetCookiesResult, error) {
		return cdp.Call(ctx, t, network.GetCookies, network.GetCookiesParams{})
	})
	require.NoError(b, err)
	require.Len(b, cookies.Cookies, 1)
	other := &http.Cookie{Name: cookies.Cookies[0].Name, Value: cookies.Cookies[0].Value}
	client := &http.Client{Timeout: time.Minute}
	fmt.Printf("%d agents, %d events, %d calls wait; load %s\n\n", n.agents, events, n.waiting, load())
	console, _ := strconv.Atoi(s.console())
	used := func() time.Duration { return processor(b, h.Cmd.Process.Pid) + processor(b, console) }
	idle, began := used(), time.Now()
	time.Sleep(n.phase / 2)
	rate := (used() - idle).Seconds() / time.Since(began).Seconds()
	fmt.Println("| page | bytes | HTTP ms: first | median (least to p90) | processor ms of daemon and console: first | median | Chromium until load ms: first | median (least to p90) |\n|---|---|---|---|---|---|---|---|")
	for _, p := range pages {
		var plain, loaded []float64
		bytes, spent := 0, []float64{}
		for range n.rounds {
			before, began := used(), time.Now()
			bytes = len(fetch(b, client, other, s.root()+p.path, false))
			took := time.Since(began)
			plain, spent = append(plain, 1000*took.Seconds()), append(spent, 1000*((used()-before).Seconds()-rate*took.Seconds()))
			br.open(s, p.path)
			loaded = append(loaded, value[float64](br, `new Promise((done) => { const look = () => { const t = performance.getEntriesByType("navigation")[0]; t.loadEventEnd > 0 ? done(t.loadEventEnd) : setTimeout(look, 5); }; look(); })`, chromedp.EvalAwaitPromise))
		}
		fmt.Printf("| %s | %d | %.1f | %s | %.1f | %.1f | %.1f | %s |\n", p.name, bytes, plain[0], spread(plain[1:]), spent[0], median(spent[1:]), loaded[0], spread(loaded[1:]))
	}
	assets := value[[]string](br, `[...document.querySelectorAll("link[href], script[src]")].map((e) => e.href || e.src)`)
	for _, url := range assets {
		fmt.Printf("| %s | %d | | | | | | |\n", filepath.Base(url), len(fetch(b, client, other, url, false)))
	}
	br.do(chromedp.Navigate("about:blank"))
	viewers(b, h, s, other, n, caller)
}

// viewers prints what ten viewers cost the daemon and the console while an agent works, beyond the same work without them.
func viewers(b *testing.B, h *harness.Host, s *served, cookie *http.Cookie, n benchSizes, caller *harness.Raw) {
	pid, _ := strconv.Atoi(s.console())
	processes := []int{h.Cmd.Process.Pid, pid}
	next := n.calls
	phase := func(look func(stop <-chan struct{})) (used [2]float64) {
		stop := make(chan struct{})
		var all sync.WaitGroup
		if look != nil {
			for range 10 {
				all.Go(func() { look(stop) })
			}
		}
		time.Sleep(n.phase / 10)
		began, before := time.Now(), [2]time.Duration{}
		for i, p := range processes {
			before[i] = processor(b, p)
		}
		for end := began.Add(n.phase); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			calls(b, caller, next, 1)
			next++
		}
		for i, p := range processes {
			used[i] = 100 * (processor(b, p) - before[i]).Seconds() / time.Since(began).Seconds()
		}
		close(stop)
		all.Wait()
		return used
	}
	kinds := []struct {
		name string
		look func(stop <-chan struct{})
	}{
		{"none", nil},
		{"ten streams", func(stop <-chan struct{}) { watch(b, s, cookie, "", "", stop) }},
		{"ten at Now", func(stop <-chan struct{}) { watch(b, s, cookie, "/", "top", stop) }},
		{"ten at Inbox", func(stop <-chan struct{}) { watch(b, s, cookie, "/inbox", "approvals", stop) }},
		{"ten at Log", func(stop <-chan struct{}) { watch(b, s, cookie, "/log", "log", stop) }},
	}
	used := make([][2][]float64, len(kinds))
	for range n.turns {
		for i, k := range kinds {
			one := phase(k.look)
			used[i][0], used[i][1] = append(used[i][0], one[0]), append(used[i][1], one[1])
		}
	}
	fmt.Printf("\n20 calls a second; load %s\n\n| viewers | daemon, %% of a processor, median | console | more: daemon | console |\n|---|---|---|---|---|\n", load())
	for i, k := range kinds {
		d, c := median(used[i][0]), median(used[i][1])
		fmt.Printf("| %s | %.2f | %.2f | %.2f | %.2f |\n", k.name, d, c, d-median(used[0][0]), c-median(used[0][1]))
	}
}

// watch follows the stream as the script of a page does: it loads the page again when what it follows has changed.
func watch(b *testing.B, s *served, cookie *http.Cookie, path, follow string, stop <-chan struct{}) {
	client := &http.Client{}
	r, err := http.NewRequest(http.MethodGet, s.root()+"/live", nil)
	if !assert.NoError(b, err) {
		return
	}
	r.Header.Set("Accept", "text/event-stream")
	r.AddCookie(cookie)
	resp, err := client.Do(r)
	for ; err == nil && resp.StatusCode == http.StatusTooManyRequests; resp, err = client.Do(r) { // those before are not gone yet
		resp.Body.Close()
		time.Sleep(100 * time.Millisecond)
	}
	if !assert.NoError(b, err) {
		return
	}
	defer resp.Body.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		read := bufio.NewScanner(resp.Body)
		read.Buffer(nil, 4<<20)
		for read.Scan() {
			select {
			case lines <- read.Text():
			case <-stop:
				return
			}
		}
	}()
	changed := regexp.MustCompile(`"changed":\[[^\]]*"` + follow + `"`)
	for {
		select {
		case <-stop:
			return
		case line, ok := <-lines:
			if !assert.True(b, ok, "the stream ends") {
				return
			}
			if path != "" && changed.MatchString(line) {
				fetch(b, client, cookie, s.root()+path, true)
			}
		}
	}
}

// calls makes calls one after the other.
func calls(b *testing.B, r *harness.Raw, from, count int) {
	require.NoError(b, r.SetDeadline(time.Now().Add(5*time.Minute)))
	for i := range count {
		_, err := io.WriteString(r, harness.Request(from+i, "read_file", `{"path":"a.txt"}`))
		require.NoError(b, err)
		r.Line()
	}
}

func fetch(b *testing.B, client *http.Client, cookie *http.Cookie, url string, live bool) string {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if !assert.NoError(b, err) {
		return ""
	}
	if live {
		r.Header.Set("Scopefs-Live", "1")
	}
	r.AddCookie(cookie)
	resp, err := client.Do(r)
	if !assert.NoError(b, err) {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	assert.NoError(b, err)
	assert.Equal(b, http.StatusOK, resp.StatusCode, url)
	return string(text)
}

// processor returns the processor time that the threads of a process have had; proc_pid_schedstat in the kernel's sched-stats.rst.
func processor(b *testing.B, pid int) (spent time.Duration) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(b, err)
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		on, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(on, 10, 64)
		spent += time.Duration(ns)
	}
	return spent
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(text))[:1], " ")
}

func median(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }

func spread(v []float64) string {
	slices.Sort(v)
	return fmt.Sprintf("%.1f (%.1f to %.1f)", v[len(v)/2], v[0], v[len(v)*9/10])
}
