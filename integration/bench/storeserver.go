package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startServer starts a program and waits until it answers, 10 s at most. The error is
// errAbsent if there is no such program.
func startServer(answers func() error, name string, args ...string) (stop func(), err error) {
	_, stop, err = startProcess(answers, name, args...)
	return stop, err
}

// startProcess is startServer with the id of the process.
func startProcess(answers func() error, name string, args ...string) (pid int, stop func(), err error) {
	program, err := exec.LookPath(name)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %w", name, errAbsent)
	}
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY=bench", "ROOT_SECRET_KEY="+benchSecret) // of versitygw
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	for range 200 {
		if err = answers(); err == nil {
			return cmd.Process.Pid, stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return 0, nil, fmt.Errorf("%s does not answer: %w", name, err)
}

const benchSecret = "bench-secret"

// freeAddress returns an address of the loopback interface with a free port.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// startMessages has the server of NATS in this process, with the same durability.
func startMessages(dir string) (config string, ops []storeOp, stop func(), err error) {
	nat, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, JetStream: true,
		StoreDir: filepath.Join(dir, "direct"), SyncAlways: true})
	if err != nil {
		return "", nil, nil, err
	}
	nat.Start()
	stop = func() { nat.Shutdown(); nat.WaitForShutdown() }
	if ops, err = messageOps(nat); err != nil {
		stop()
	}
	return "messages: {}", ops, stop, err
}

// messageOps are the calls of a message store. The direct subscriber reads the messages
// in turn and acknowledges each; the tool reads the first message again.
func messageOps(nat *server.Server) ([]storeOp, error) {
	conn, err := nats.Connect("", nats.InProcessServer(nat))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "direct", Subjects: []string{"jobs"}}); err != nil {
		return nil, err
	}
	reader, err := js.CreateConsumer(ctx, "direct", jetstream.ConsumerConfig{Durable: "reader"})
	if err != nil {
		return nil, err
	}
	return []storeOp{
		{"publish 1 KiB", "publish", func(int) map[string]any { return map[string]any{"subject": "jobs", "text": storeText} }, func(int) error {
			_, err := js.Publish(ctx, "jobs", []byte(storeText))
			return err
		}},
		{"subscribe, a message", "subscribe", func(int) map[string]any { return map[string]any{"subject": "jobs", "limit": 1} }, func(int) error {
			m, err := reader.Next()
			if err != nil {
				return err
			}
			return errors.Join(enough(len(m.Data()), nil), m.DoubleAck(ctx))
		}},
	}, nil
}

// startMetrics has InfluxDB 1. The direct calls write the same lines and queries.
func startMetrics(dir string) (config string, ops []storeOp, stop func(), err error) {
	var addresses [2]string
	for i := range addresses {
		if addresses[i], err = freeAddress(); err != nil {
			return "", nil, nil, err
		}
	}
	root := "http://" + addresses[0]
	text := fmt.Sprintf("reporting-disabled = true\nbind-address = %q\n[meta]\ndir = \"%[2]s/meta\"\n[data]\ndir = \"%[2]s/data\"\nwal-dir = \"%[2]s/wal\"\n"+
		"[monitor]\nstore-enabled = false\n[http]\nbind-address = %[3]q\nlog-enabled = false\n", addresses[1], dir, addresses[0])
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(text), 0o600); err != nil {
		return "", nil, nil, err
	}
	client := &http.Client{Timeout: time.Minute}
	ask := func(text string) (int, error) {
		return exchange(client, root+"/query", "application/x-www-form-urlencoded",
			url.Values{"db": {"direct"}, "epoch": {"ns"}, "q": {text}}.Encode())
	}
	stop, err = startServer(func() error { _, err := ask("CREATE DATABASE direct"); return err }, "influxd", "-config",
		filepath.Join(dir, "conf"))
	began := time.Now().Add(-30 * time.Minute)
	at := func(n int) time.Time { return began.Add(time.Duration(n) * time.Millisecond) }
	return fmt.Sprintf("metrics: {url: %q}", root), []storeOp{
		{"metrics_write a point", "metrics_write", func(n int) map[string]any {
			return map[string]any{"points": []any{map[string]any{"measurement": "cpu",
				"tags": map[string]any{"host": "h"}, "fields": map[string]any{"v": 1.5}, "time": at(n).Format(time.RFC3339Nano)}}}
		}, func(n int) error {
			_, err := exchange(client, root+"/write?db=direct", "text/plain", fmt.Sprintf("cpu,host=h v=1.5 %d\n", at(n).UnixNano()))
			return err
		}},
		{"metrics_query 10 of the points", "metrics_query", func(int) map[string]any {
			return map[string]any{"measurement": "cpu", "fields": []any{map[string]any{"name": "v"}}, "limit": 10}
		}, func(int) error {
			_, err := ask(fmt.Sprintf(`SELECT "v" FROM "cpu" WHERE time >= %d LIMIT 11`, began.Add(-time.Hour).UnixNano()))
			return err
		}},
	}, stop, err
}

// exchange posts a body and returns how many bytes the answer has.
func exchange(client *http.Client, target, kind, body string) (int, error) {
	res, err := client.Post(target, kind, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s: %.200s", res.Status, text)
	}
	return len(text), err
}

// startObjects has an S3 server that keeps objects as files.
func startObjects(dir string) (config string, ops []storeOp, stop func(), err error) {
	for _, name := range []string{"buckets/store", "meta", "iam"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return "", nil, nil, err
		}
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(benchSecret), 0o600); err != nil {
		return "", nil, nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return "", nil, nil, err
	}
	client, err := minio.NewCore(address, &minio.Options{Creds: credentials.NewStaticV4("bench", benchSecret, ""), Region: "us-east-1"})
	if err != nil {
		return "", nil, nil, err
	}
	ctx := context.Background()
	stop, err = startServer(func() error { _, err := client.BucketExists(ctx, "store"); return err },
		"versitygw", "--port", address, "--quiet", "--keep-alive", "--iam-dir", filepath.Join(dir, "iam"), "posix",
		"--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "buckets"))
	key := func(n int) string { return fmt.Sprintf("k%03d", n%100) }
	return fmt.Sprintf("objects: {url: %q, bucket: store, access_key: bench, secret_key: {file: %q}, addresses: [127.0.0.1]}", "http://"+address, secret), []storeOp{
		{"object_put 1 KiB", "object_put", func(n int) map[string]any { return map[string]any{"key": key(n), "content": storeText} }, func(n int) error {
			_, err := client.PutObject(ctx, "store", "direct/"+key(n), strings.NewReader(storeText),
				int64(len(storeText)), "", "", minio.PutObjectOptions{DisableContentSha256: true})
			return err
		}},
		{"object_get 1 KiB", "object_get", func(n int) map[string]any { return map[string]any{"key": key(n)} }, func(n int) error {
			body, _, _, err := client.GetObject(ctx, "store", "direct/"+key(n), minio.GetObjectOptions{})
			if err != nil {
				return err
			}
			defer body.Close()
			var text bytes.Buffer
			size, err := io.Copy(&text, body)
			return enough(int(size), err)
		}},
	}, stop, err
}

// startNotify has a webhook's server in this process. Like the tool, the direct calls
// use each connection once.
func startNotify(string) (config string, ops []storeOp, stop func(), err error) {
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	return fmt.Sprintf("notify: {hook: {kind: webhook, url: %q, addresses: [127.0.0.1], rate: 1000000}}", sink.URL), []storeOp{
		{"notify a webhook, 1 KiB", "notify", func(int) map[string]any { return map[string]any{"channel": "hook", "content": storeText} }, func(int) error {
			_, err := exchange(client, sink.URL, "application/json", storeText)
			return err
		}},
	}, sink.Close, nil
}
