package objects

import (
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
	door "github.com/scopefs/scopefs/tools/objects"
)

const hush = "s3cret-of-the-operator"

var loopbackOnly = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// server is an S3 server with the bucket "store".
type server struct{ servertest.Objects }

func startServer(t *testing.T) server {
	t.Helper()
	return server{servertest.StartObjects(t, hush)}
}

func (s server) open(t *testing.T, change func(*Options)) *Store {
	return open(t, "http://"+s.Address, change)
}

// open opens the bucket "store" of a server.
func open(t *testing.T, server string, change func(*Options)) *Store {
	t.Helper()
	u, err := url.Parse(server)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(hush), 0o600))
	o := Options{Options: door.Options{
		URL: u, Bucket: "store", AccessKey: "operator", SecretKey: &credential.Source{File: file}, Addresses: loopbackOnly,
	}}
	if change != nil {
		change(&o)
	}
	if o.Secret = o.SecretKey.Read; o.Dial == nil {
		o.Dial = (&egress.Dialer{Pinned: o.Addresses}).DialContext
	}
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// client calls the tools as one agent, through the door.
type client struct{ *agenttest.Agent }

func newClient(t *testing.T, store *Store, id, front string) *client {
	t.Helper()
	ours, err := door.New(store, store.Prefix)
	require.NoError(t, err)
	return &client{agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, front, ours)}
}

type args map[string]any

// The results of the tools.
type (
	got struct {
		Text     string `json:"content"`
		Encoding string
		Bytes    int
		ETag     string
		Modified time.Time
	}
	done struct {
		Bytes int
		ETag  string
	}
	deleted struct{}
	listed  struct {
		Key   string
		Bytes int64
		ETag  string
	}
	page struct {
		Objects    []listed
		NextCursor string `json:"next_cursor"`
	}
)

// call calls a tool. An error and its event do not hold the secret.
func (c *client) call(t *testing.T, tool string, in args, out any) error {
	t.Helper()
	err := c.Call(t.Context(), t, tool, in, out)
	if err != nil {
		assert.NotContains(t, err.Error()+c.Last().Detail, hush)
	}
	return err
}

// must calls a tool and fails the test if the call fails.
func must[T any](t *testing.T, c *client, tool string, in args) (out T) {
	t.Helper()
	require.NoError(t, c.call(t, tool, in, &out), c.Events())
	return out
}

var code = agenttest.Code

// keys returns the keys of all pages.
func (c *client) keys(t *testing.T, path string, limit int) (all []string) {
	t.Helper()
	in := args{"path": path, "limit": limit}
	return agenttest.Pages(t, in, func() (keys []string, next string) {
		p := must[page](t, c, "object_list", in)
		for _, o := range p.Objects {
			keys = append(keys, o.Key)
		}
		return keys, p.NextCursor
	})
}
