package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"sync"
	"time"
)

// egressJob is what a client measures, as one line of JSON on its standard input. The
// client is in a sandbox, and uses the proxy that HTTPS_PROXY names there.
type egressJob struct {
	URL         string `json:"url"`
	CA          string `json:"ca"`          // PEM: what the client trusts beside its system's roots
	Connections int    `json:"connections"` // at a time
	Count       int    `json:"count"`       // of requests, in all connections
	Fresh       bool   `json:"fresh"`       // each request has a connection of its own
	Hold        int    `json:"hold"`        // idle connections to open, and to keep until the next job
}

// egressResult is one line of JSON on a client's standard output.
type egressResult struct {
	Micros  []float64 `json:"micros"` // of each request, from its beginning to the end of the response
	First   []float64 `json:"first"`  // to the first byte of each body
	Seconds float64   `json:"seconds"`
	Bytes   int64     `json:"bytes"`
	Err     string    `json:"err,omitempty"`
}

// egressClient does jobs until its standard input ends.
func egressClient(arguments) error {
	c := &client{kept: map[string]*http.Client{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var job egressJob
		if err := json.Unmarshal(lines.Bytes(), &job); err != nil {
			return err
		}
		result, err := c.do(job)
		if err != nil {
			result.Err = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

// client is the client of one sandbox. Its connections stay open between jobs.
type client struct {
	kept map[string]*http.Client // by URL
	held []net.Conn
}

func (c *client) do(job egressJob) (r egressResult, err error) {
	for _, conn := range c.held {
		conn.Close()
	}
	c.held = nil
	one := c.kept[job.URL]
	if one == nil || job.Fresh {
		if one != nil {
			one.CloseIdleConnections()
		}
		if one, err = newClient(job); err != nil {
			return r, err
		}
		c.kept[job.URL] = one
	}
	transport := one.Transport.(*http.Transport)
	transport.MaxIdleConnsPerHost = max(job.Connections, transport.MaxIdleConnsPerHost)
	for range job.Hold {
		conn, err := hold(one, job.URL)
		if err != nil {
			return r, err
		}
		c.held = append(c.held, conn)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	began, left := time.Now(), job.Count
	for range job.Connections {
		wait.Go(func() {
			for {
				mu.Lock()
				stop := left <= 0 || err != nil
				left--
				mu.Unlock()
				if stop {
					return
				}
				first, took, n, failed := fetch(one, job.URL)
				mu.Lock()
				if failed != nil {
					err = failed
				}
				r.Micros, r.First = append(r.Micros, micros(took)), append(r.First, micros(first))
				r.Bytes += n
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	r.Seconds = time.Since(began).Seconds()
	return r, err
}

func newClient(job egressJob) (*http.Client, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AppendCertsFromPEM([]byte(job.CA))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}},
		DisableCompression: true, DisableKeepAlives: job.Fresh, ReadBufferSize: 64 << 10}
	if proxy := os.Getenv("HTTPS_PROXY"); proxy != "" {
		at, err := url.Parse(proxy)
		if err != nil {
			return nil, err
		}
		transport.Proxy = http.ProxyURL(at)
	}
	return &http.Client{Transport: transport, Timeout: 10 * time.Minute}, nil
}

// fetch makes a request, and returns the times to the first byte of the response's body
// and to its end.
func fetch(c *http.Client, target string) (first, took time.Duration, n int64, err error) {
	began := time.Now()
	res, err := c.Get(target)
	if err != nil {
		return 0, 0, 0, err
	}
	defer res.Body.Close()
	buf := make([]byte, 64<<10)
	for {
		m, err := res.Body.Read(buf)
		if n += int64(m); m > 0 && first == 0 {
			first = time.Since(began)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, 0, err
		}
	}
	if res.StatusCode != http.StatusOK {
		return 0, 0, 0, errors.New(res.Status)
	}
	return first, time.Since(began), n, nil
}

// hold opens a connection for a request, and returns it idle.
func hold(c *http.Client, target string) (conn net.Conn, err error) {
	t := c.Transport.(*http.Transport).Clone()
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	res, err := t.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("idle connection: %w", err)
	}
	_, err = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return conn, err
}
