package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// quoteContext replaces the environment in the _meta of a call's params by a string
// that holds its JSON. The SDK decodes _meta into values: that would change numbers,
// and of a name that an object has twice it would lose one.
func quoteContext(params []byte) []byte {
	if !bytes.Contains(params, []byte(`/context"`)) {
		return params
	}
	return rpc.Replace(params, "_meta", func(meta []byte) []byte {
		return rpc.Replace(meta, names.Meta+"context", func(old []byte) []byte { return quoted(string(old)) })
	})
}

// beside returns what the _meta of a call says of its context, as tools.Call has it.
func beside(meta mcp.Meta) (json.RawMessage, error) {
	said := map[string]any{}
	for key, value := range meta {
		name, ours := strings.CutPrefix(key, names.Meta)
		if !ours {
			continue
		}
		if text, ok := value.(string); ok && name == "context" && json.Valid([]byte(text)) {
			value = json.RawMessage(text) // see quoteContext
		}
		said["_"+name] = value
	}
	if len(said) == 0 {
		return nil, nil
	}
	return tools.Marshal(said) // strings of the context keep their bytes
}

// contexts are the environments of a Face's sessions.
type contexts struct {
	setting sync.Mutex // held while one is replaced and kept

	mu  sync.Mutex // of each call: what keeps one is not called under it
	all map[*mcp.ServerSession]kept
}

// kept is the environment of one session, and ends its hold on memory.
type kept struct {
	*scoped.Environment
	release func()
}

// contextOf returns the environment of a session, and the function that adds to it;
// nil: the client has no session.
func (f *Face) contextOf(ctx context.Context, req *mcp.CallToolRequest) (*scoped.Environment, func(*scoped.Environment) error) {
	f.contexts.mu.Lock()
	env, own := f.contexts.all[req.Session]
	f.contexts.mu.Unlock()
	if !own {
		env.Environment = f.opt.Context
	}
	if req.Extra != nil && req.Extra.Header != nil && req.ProtocolVersion() >= statelessProtocol {
		return env.Environment, nil
	}
	id := ""
	if s, web := ctx.Value(webKey{}).(*webSession); web {
		s.mu.Lock()
		id = s.id
		s.mu.Unlock()
	}
	return env.Environment, func(next *scoped.Environment) error { return f.keepContext(req.Session, id, next) }
}

// restoreContext adds to the environment of a new session what the last Face has left of it. No call of the session has begun.
func (f *Face) restoreContext(session *mcp.ServerSession, id string) {
	if f.opt.KeptContext != nil {
		f.opt.KeptContext(id, func(next *scoped.Environment) error { return f.keepContext(session, id, next) })
	}
}

// keepContext replaces what is added to the environment of a session.
func (f *Face) keepContext(session *mcp.ServerSession, id string, next *scoped.Environment) error {
	env, bad := f.opt.Context.Append(next)
	if bad != nil {
		return &tools.Error{Code: tools.Code(bad.Code), Message: bad.Message, Path: "/messages"}
	}
	f.contexts.setting.Lock()
	defer f.contexts.setting.Unlock()
	err := f.setContext(session, env)
	if f.opt.KeepContext != nil {
		var messages []byte // after an error: none
		if err == nil {
			messages = next.JSON()
		}
		f.opt.KeepContext(id, messages)
	}
	return err
}

// setContext replaces the environment of a session. After an error it has none.
func (f *Face) setContext(session *mcp.ServerSession, env *scoped.Environment) error {
	f.contexts.mu.Lock()
	defer f.contexts.mu.Unlock()
	open := slices.Collect(f.server.Sessions())
	for s := range f.contexts.all {
		if s == session || !slices.Contains(open, s) {
			f.dropContext(s)
		}
	}
	release := func() {}
	if f.opt.HoldContext != nil {
		var ok bool
		if release, ok = f.opt.HoldContext(env.Size()); !ok {
			return tools.Errorf(tools.RateLimited, "the contexts of the agent's sessions have too many bytes: this session has none now")
		}
	}
	if f.contexts.all == nil {
		f.contexts.all = map[*mcp.ServerSession]kept{}
	}
	f.contexts.all[session] = kept{env, release}
	return nil
}

// dropContext forgets a session's environment. The caller holds the lock.
func (f *Face) dropContext(session *mcp.ServerSession) {
	if env, ok := f.contexts.all[session]; ok {
		env.release()
		delete(f.contexts.all, session)
	}
}

// endContext is dropContext for a session that has ended.
func (f *Face) endContext(session *mcp.ServerSession) {
	f.contexts.mu.Lock()
	defer f.contexts.mu.Unlock()
	f.dropContext(session)
}
