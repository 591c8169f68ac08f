package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

type benchArgs struct {
	Path    string `json:"path"`
	Content string `json:"content" limit:"len=4194304"`
}

func (a benchArgs) Subject() (path, target string) { return a.Path, "" }

// BenchmarkCall measures the door alone, for a text as an editor writes it.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{0, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tool, err := New("bash", "test", Hints{}, func(context.Context, Env, benchArgs) (struct{}, error) { return struct{}{}, nil })
			require.NoError(b, err)
			d := desk{}
			gate := d.gate(b, "")
			gate.Record = func(context.Context, audit.Event) error { return nil }
			set, err := NewSet(gate, tool)
			require.NoError(b, err)
			args, err := json.Marshal(benchArgs{"d/f", strings.Repeat("some text, a line of 32 bytes..\n", size/32)})
			require.NoError(b, err)
			b.SetBytes(int64(len(args)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := set.Call(context.Background(), Call{Tool: "bash", Args: args}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
