package upstream

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type said struct {
	Text string `json:"text"`
}

// addTools adds the tools that the test servers share.
func addTools(server *mcp.Server) {
	add := func(name string, f func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error)) {
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: "does " + name},
			func(ctx context.Context, r *mcp.CallToolRequest, in said) (*mcp.CallToolResult, any, error) {
				res, err := f(ctx, r, in)
				return res, nil, err
			})
	}
	text := func(s string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
	}
	add("echo", func(_ context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, error) {
		return text(in.Text), nil
	})
	add("die", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "fatal: \x1b[31mout of cheese")
		os.Exit(1)
		return nil, nil
	})
	add("huge", func(_ context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, error) {
		var n int
		fmt.Sscan(in.Text, &n)
		return text(strings.Repeat("é", n/2)), nil
	})
	add("fail", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		return nil, fmt.Errorf("no such row")
	})
	add("wait", func(ctx context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, error) {
		if err := os.WriteFile(in.Text, []byte("waiting"), 0o600); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, os.WriteFile(in.Text, []byte("cancelled"), 0o600)
	})
	add("grow", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		server.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text("new"), nil
		})
		return text("grown"), nil
	})
	add("roots", func(ctx context.Context, r *mcp.CallToolRequest, _ said) (*mcp.CallToolResult, error) {
		roots, err := r.Session.ListRoots(ctx, nil)
		if err != nil {
			return nil, err
		}
		_, sampling := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{Messages: []*mcp.SamplingMessage{}})
		_, elicit := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "password?", RequestedSchema: map[string]any{"type": "object"}})
		return text(fmt.Sprint(len(roots.Roots), roots.Roots[0].URI, sampling != nil, elicit != nil)), nil
	})
	add("all", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "text"},
			&mcp.ImageContent{Data: []byte("img"), MIMEType: "image/png"},
			&mcp.AudioContent{Data: []byte("aud"), MIMEType: "evil\nheader"},
			&mcp.ResourceLink{Name: "link", URI: "file:///x"},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "a:b", Text: "inside"}},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "a:c", Blob: []byte("blob"), MIMEType: "application/pdf"}},
		}}, nil
	})
	add("cwd", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		dir, err := os.Getwd()
		return text(dir), err
	})
	add("blast", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		for range 5_000 {
			fmt.Println(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		return text("blasted"), nil
	})
	add("mangle", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		methods := []string{"ping", "roots/list", "sampling/createMessage", "elicitation/create", "completion/complete", "tools/call", "",
			"notifications/cancelled", "notifications/tools/list_changed", "notifications/progress", "notifications/message",
			"notifications/resources/updated", "notifications/elicitation/complete", "notifications/subscriptions/acknowledged"}
		id := 1000
		for _, m := range methods {
			for _, params := range []string{"", `,"params":null`, `,"params":{}`, `,"params":[]`, `,"params":7`, `,"params":{"_meta":null}`,
				`,"params":{"requestId":1.5}`, `,"params":{"requestId":{}}`, `,"params":{"_meta":7,"mode":"url","elicitationId":"x","progressToken":[]}`} {
				for _, suffix := range []string{"", fmt.Sprintf(`,"id":%d`, id), fmt.Sprintf(`,"id":"%d"`, id)} {
					fmt.Printf(`{"jsonrpc":"2.0","method":%q%s%s}`+"\n", m, params, suffix)
					id++
				}
			}
		}
		fmt.Println(`{"jsonrpc":"2.0","id":99999,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`)
		return text("mangled"), nil
	})
	add("stall", func(context.Context, *mcp.CallToolRequest, said) (*mcp.CallToolResult, error) {
		time.Sleep(time.Hour)
		return nil, nil
	})
}
