package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// origin is the server of the bench, on loopback: https://localhost and the names of the
// agent's rules.
type origin struct {
	*httptest.Server
	ca   string // PEM
	port string
}

// originHosts are the names of the agent's rules: a tunnel, requests decided one by one,
// and the same with a credential.
var originHosts = []string{"tunnel.test", "requests.test", "credential.test"}

func startOrigin() (*origin, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"},
		DNSNames:  append([]string{"localhost"}, originHosts...),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.FormValue("n"), 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		for buf := make([]byte, 64<<10); n > 0; n -= int64(len(buf)) {
			if _, err := w.Write(buf[:min(n, int64(len(buf)))]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond)
		}
	})
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	return &origin{s, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), port}, err
}

// startSides starts a client for each way to the server. Ways whose programs are absent
// are left out. stop is never nil.
func startSides(o *origin, dir, scopefs, self, node, srt string) (sides []egressSide, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	add := func(p *egressProcess, names, urls []string) {
		stops = append(stops, p.stop)
		for i := range names {
			sides = append(sides, egressSide{names[i], urls[i], p})
		}
	}
	local := "https://localhost:" + o.port
	direct, err := startClient(exec.Command(self, "client"), func() []int { return nil })
	if err != nil {
		return nil, stop, err
	}
	add(direct, []string{"direct"}, []string{local})

	pid, end, err := startNetworkDaemon(o, dir, scopefs, self)
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, end)
	inside, err := startClient(exec.Command(scopefs, "--base", filepath.Join(dir, "base"), "run", "bench", "--",
		"/workspace/client", "client"),
		func() []int {
			return slices.Concat(children(pid, "scopefs-log"), children(pid, "scopefs-agent"), []int{pid})
		})
	if err != nil {
		return nil, stop, err
	}
	names, urls := []string{"scopefs, tunnel", "scopefs, requests decided", "scopefs, credential"}, []string{}
	for _, host := range originHosts {
		urls = append(urls, "https://"+host)
	}
	add(inside, names, urls)

	if tiny, end, err := startTinyproxy(dir, self); err == nil {
		stops = append(stops, end)
		add(tiny, []string{"tinyproxy, tunnel"}, []string{local})
	} else if !errors.Is(err, errAbsent) {
		return nil, stop, err
	}
	for _, one := range []string{"tunnel", "TLS terminated"} {
		if srt == "" {
			break
		}
		p, err := startSRT(o, dir, self, node, srt, one != "tunnel")
		if err != nil {
			return nil, stop, err
		}
		add(p, []string{"sandbox-runtime, " + one}, []string{local})
	}
	return sides, stop, nil
}

// startNetworkDaemon starts a daemon with an agent that reaches the server by its names.
func startNetworkDaemon(o *origin, dir, scopefs, self string) (pid int, end func(), err error) {
	base, at := filepath.Join(dir, "base"), net.JoinHostPort("127.0.0.1", o.port)
	if err := os.Setenv("SCOPEFS_BENCH_KEY", "bench-"+rand.Text()); err != nil {
		return 0, nil, err
	}
	var rules []string
	ca := fmt.Sprintf(", ca: %q", o.ca) // not for the tunnel, whose client checks the certificate itself
	for i, host := range originHosts {
		more := []string{"", ca + ", paths: ['/**']", ca + ", credential: {header: x-api-key, from: {env: SCOPEFS_BENCH_KEY}}"}[i]
		rules = append(rules, fmt.Sprintf("{host: %s, address: '%s'%s}", host, at, more))
	}
	for _, d := range []string{"agents.d", "agents/bench"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			return 0, nil, err
		}
	}
	text := "---\nname: bench\ndescription: measured\nnetwork: {allow: [" + strings.Join(rules, ", ") + "]}\n---\n"
	err = errors.Join(os.WriteFile(filepath.Join(base, "agents.d/bench.md"), []byte(text), 0o644),
		copyProgram(self, filepath.Join(base, "agents/bench/client")))
	if err != nil {
		return 0, nil, err
	}
	return startDaemon(scopefs, base)
}

func copyProgram(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// startTinyproxy starts tinyproxy on loopback, with a client outside of any sandbox.
func startTinyproxy(dir, self string) (*egressProcess, func(), error) {
	at, err := freeAddress()
	if err != nil {
		return nil, nil, err
	}
	host, port, _ := net.SplitHostPort(at)
	conf := filepath.Join(dir, "tinyproxy.conf")
	text := fmt.Sprintf("Listen %s\nPort %s\nTimeout 600\nMaxClients 2048\nLogLevel Error\nLogFile %q\n", host, port,
		filepath.Join(dir, "tinyproxy.log"))
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, nil, err
	}
	pid, end, err := startProcess(func() error {
		c, err := net.Dial("tcp", at)
		if err == nil {
			err = c.Close()
		}
		return err
	}, "tinyproxy", "-d", "-c", conf)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, "client")
	cmd.Env = append(os.Environ(), "HTTPS_PROXY=http://"+at)
	p, err := startClient(cmd, func() []int { return []int{pid} })
	return p, end, err
}

// startSRT starts a client in a sandbox of @anthropic-ai/sandbox-runtime. Its proxies are
// in the node process, and socat leads to them.
func startSRT(o *origin, dir, self, node, srt string, terminate bool) (*egressProcess, error) {
	own, err := os.MkdirTemp("", "scopefs-bench-") // /dev is another one inside
	if err != nil {
		return nil, err
	}
	settings, ca, program := filepath.Join(own, "settings.json"), filepath.Join(own, "ca.pem"), filepath.Join(own, "client")
	network := map[string]any{"allowedDomains": []string{"localhost"}, "deniedDomains": []string{}}
	if terminate {
		network["tlsTerminate"] = map[string]any{}
	}
	text, err := json.Marshal(map[string]any{"network": network,
		"filesystem": map[string]any{"denyRead": []string{}, "allowWrite": []string{own}, "denyWrite": []string{}}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(settings, text, 0o644), os.WriteFile(ca, []byte(o.ca), 0o644), copyProgram(self, program)); err != nil {
		return nil, err
	}
	cmd := exec.Command(node, srt, "-s", settings, "-c", program+" client")
	cmd.Dir = own
	cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+ca)
	p, err := startClient(cmd, func() []int { return append(children(cmd.Process.Pid, "socat"), cmd.Process.Pid) })
	if err != nil {
		return nil, err
	}
	end := p.stop
	p.stop = func() {
		end()
		_ = os.RemoveAll(own)
	}
	return p, nil
}

// children returns the descendants of a process with a name, the first of its arguments: a program that runs itself again is "exe"
// to the kernel.
func children(pid int, name string) (found []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread that has ended has none
		for _, word := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(word)
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
			if argv0, _, _ := strings.Cut(string(line), "\x00"); filepath.Base(argv0) == name {
				found = append(found, child)
			}
			found = append(found, children(child, name)...)
		}
	}
	return found
}

// processor returns the processor time of processes.
func processor(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(text), ") ")
		if words := strings.Fields(rest); len(words) > 12 {
			user, _ := strconv.Atoi(words[11])
			system, _ := strconv.Atoi(words[12])
			sum += time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
		}
	}
	return sum
}

// memory returns the resident memory of processes, in MiB. Pages that they share count
// once (Pss of proc_pid_smaps(5)).
func memory(pids []int) (sum float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) == 3 && words[0] == "Pss:" {
				kib, _ := strconv.Atoi(words[1])
				sum += float64(kib) / 1024
			}
		}
	}
	return sum
}
