package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

const (
	metaPrefix = "scopefs/" // of the keys of _meta that are kept
	maxMeta    = 8 << 10    // bytes of one
)

// Declaration is a tool as its server declares it, cleaned and clipped.
type Declaration struct {
	Name, About string
	Hints       tools.Hints
	Input       *jsonschema.Schema
	Meta        map[string]json.RawMessage // the keys of _meta that begin with scopefs/
	Text        string                     // the whole declaration, as JSON
	Sum         string                     // SHA-256 of Text
}

// Declared returns the tools that a server declares, and starts the server if need be. A
// tool that is there twice is there twice in the result.
func (u *Upstream) Declared(ctx context.Context, server string) ([]Declaration, error) {
	now, err := u.reconcile()
	if err != nil {
		return nil, err
	}
	s := now[server]
	if s == nil {
		return nil, fmt.Errorf("no server %q", server)
	}
	c, err := s.connect(ctx, true)
	if err != nil {
		return nil, err
	}
	theirs, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", c.because(err))
	}
	var all []Declaration
	for _, t := range theirs {
		d := Declaration{Name: t.Name, About: t.Description, Hints: hintsOf(t), Input: inputSchema(t), Meta: map[string]json.RawMessage{}}
		d.Text, d.Sum = textOf(t)
		for name, value := range t.Meta {
			d.Meta[name], _ = value.(json.RawMessage) // see trim
		}
		all = append(all, d)
	}
	return all, nil
}

// MetaCode is the key of a result's _meta in which an operator's program says what kind of error it is.
const MetaCode = "scopefs/code"

// codeIn returns the code of an error in _meta, one that a store may have, or that which it has else.
func codeIn(meta mcp.Meta, otherwise tools.Code) tools.Code {
	code, _ := meta[MetaCode].(string)
	if slices.Contains([]tools.Code{tools.NotFound, tools.Conflict, tools.TooLarge, tools.Unavailable, tools.Invalid}, tools.Code(code)) {
		return tools.Code(code)
	}
	return otherwise
}

func textOf(t *mcp.Tool) (text, sum string) {
	encoded, err := json.Marshal(t)
	if err != nil {
		return "", "" // cannot happen: trim keeps what encodes
	}
	hash := sha256.Sum256(encoded)
	return string(encoded), hex.EncodeToString(hash[:])
}

// ErrChanged reports a server that no longer declares a tool as it did.
var ErrChanged = errors.New("the server has changed its declaration")

// Do calls a tool as it was declared, with meta as the call's _meta. The result has the
// structured content as the server sent it. An error that is no [*tools.Error] is not for
// agents: it may have the end of the server's output. Do fails with [ErrChanged], and calls
// nothing, if the server declares the tool in another way now.
func (u *Upstream) Do(ctx context.Context, server string, d Declaration, args json.RawMessage, meta map[string]any) (tools.Result, error) {
	r, err := u.request(ctx, server, &mcp.CallToolParams{Name: d.Name, Arguments: args, Meta: meta}, nil, func(ctx context.Context, c *conn) error {
		theirs, err := c.list(ctx)
		if err != nil {
			return fmt.Errorf("list tools: %w", c.because(err))
		}
		same := slices.DeleteFunc(slices.Clone(theirs), func(t *mcp.Tool) bool { return t.Name != d.Name })
		if len(same) == 1 {
			if _, sum := textOf(same[0]); sum == d.Sum {
				return nil
			}
		}
		return ErrChanged
	})
	if err != nil {
		return tools.Result{}, err
	}
	out, err := resultOf(server, r)
	if failed, ok := errors.AsType[*tools.Error](err); ok && r.IsError {
		failed.Code = codeIn(r.Meta, failed.Code)
	}
	if err != nil || r.StructuredContent == nil {
		return out, err
	}
	text, err := json.Marshal(r.StructuredContent)
	if err != nil {
		return tools.Result{}, fmt.Errorf("structured content: %w", err)
	}
	if len(text) > maxContent {
		return tools.Result{}, tools.Errorf(tools.TooLarge, "the result has %d bytes, and %d are the limit", len(text), maxContent)
	}
	out.Structured = text
	return out, nil
}
