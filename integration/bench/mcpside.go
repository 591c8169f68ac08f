package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpSide is a server with one client.
type mcpSide struct {
	client, root string // "": relative paths
	call         func(r request, n int) (time.Duration, int, error)
	close        func()
}

func newMCPSide(client, root string, cmd *exec.Cmd) (*mcpSide, error) {
	s := &mcpSide{client: client, root: root}
	if client == "raw" {
		return s, s.raw(cmd)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "v1"}, nil).
		Connect(context.Background(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return nil, err
	}
	s.close = func() { session.Close() }
	s.call = func(r request, n int) (time.Duration, int, error) {
		args := s.arguments(r, n)
		began := time.Now()
		switch r.method {
		case "ping":
			err := session.Ping(context.Background(), nil)
			return time.Since(began), 0, err
		case "tools/list":
			list, err := session.ListTools(context.Background(), nil)
			took := time.Since(began)
			if err != nil {
				return 0, 0, err
			}
			text, err := json.Marshal(list)
			return took, len(text), err
		}
		result, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: r.tool, Arguments: args})
		took := time.Since(began)
		if err != nil {
			return 0, 0, err
		}
		text, err := json.Marshal(result.Content)
		if result.IsError {
			err = errors.New(string(text))
		}
		return took, len(text), err
	}
	return s, nil
}

// arguments are those of the nth call, on this side.
func (s *mcpSide) arguments(r request, n int) map[string]any {
	if r.args == nil {
		return nil
	}
	all := map[string]any{}
	for k, v := range r.args(n) {
		if k == "path" && s.root != "" {
			v = filepath.Join(s.root, v.(string))
		}
		all[k] = v
	}
	return all
}

// raw is a client that does no more than it must: what it takes is the server's.
func (s *mcpSide) raw(cmd *exec.Cmd) error {
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.close = func() { in.Close(); _ = cmd.Wait() }
	lines := bufio.NewReaderSize(out, 1<<20)
	id := 0
	ask := func(method string, params any) (time.Duration, []byte, error) {
		id++
		text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
		if err != nil {
			return 0, nil, err
		}
		want := fmt.Appendf(nil, `"id":%d`, id)
		began := time.Now()
		if _, err := in.Write(append(text, '\n')); err != nil {
			return 0, nil, err
		}
		for {
			line, err := lines.ReadSlice('\n')
			took := time.Since(began)
			if err != nil {
				return 0, nil, err
			}
			if !bytes.Contains(line, want) { // a notification
				continue
			}
			if bytes.Contains(line, []byte(`"isError":true`)) || !bytes.Contains(line, []byte(`"result":`)) {
				return 0, nil, errors.New(string(line))
			}
			return took, line, nil
		}
	}
	_, _, err = ask("initialize", map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "bench", "version": "1"}})
	if err == nil {
		_, err = io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	s.call = func(r request, n int) (time.Duration, int, error) {
		params := map[string]any{}
		if r.tool != "" {
			params = map[string]any{"name": r.tool, "arguments": s.arguments(r, n)}
		}
		if r.meta != nil {
			params["_meta"] = r.meta
		}
		took, line, err := ask(r.method, params)
		return took, len(line), err
	}
	if err != nil {
		s.close()
	}
	return err
}
