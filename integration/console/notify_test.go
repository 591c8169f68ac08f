package console

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/devices"
)

// TestNotify: the operator's command for calls that wait gets the URL of the inbox, for devices that are paired, over TLS
// alone. Without a device's key it is a page of nothing.
func TestNotify(t *testing.T) {
	cert, key := certificate(t, "localhost")
	for what, test := range map[string]struct {
		flags []string
		want  string
	}{
		"TLS":    {[]string{"--console-tls-cert", cert, "--console-tls-key", key}, `^https://localhost:\d+/secretpath/inbox$`},
		"no TLS": {nil, `^$`}, // a server at another port may read what notify sends, and the cookies of the path
	} {
		t.Run(what, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
			told := filepath.Join(h.Base, "told")
			h.Put("notify.sh", "#!/bin/sh\ncat >"+told+".new && mv "+told+".new "+told+"\n")
			require.NoError(t, os.Chmod(filepath.Join(h.Base, "notify.sh"), 0o755))
			h.Put("scopefs.yaml", "approvals: {wait: 5m, notify: ["+h.Base+"/notify.sh]}\n")
			require.NoError(t, os.MkdirAll(filepath.Join(h.Base, "state"), 0o700))
			store, err := devices.Open(filepath.Join(h.Base, "state"))
			require.NoError(t, err)
			defer store.Close()
			require.NoError(t, store.Add(devices.Device{Name: "phone", ID: "id", Role: devices.Look, Key: []byte{1}}, "/secretpath"))
			h.Start(append([]string{"--console", "127.0.0.1:0"}, test.flags...)...)
			h.Connect("a").Begin(h.Soon(), "write_file", map[string]any{"path": "f", "content": "x"})
			var said struct{ ID, Console string }
			h.Eventually("the command has run", func() bool {
				text, err := os.ReadFile(told)
				return err == nil && json.Unmarshal(text, &said) == nil
			})
			assert.NotEmpty(t, said.ID)
			assert.Regexp(t, regexp.MustCompile(test.want), said.Console)
		})
	}
}
