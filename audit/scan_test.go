package audit

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/segment"
)

// TestReadAsParsed compares filtered reads of a damaged log with a parse of each line.
func TestReadAsParsed(t *testing.T) {
	random := rand.New(rand.NewPCG(27, 1))
	now, seq := generated(1), uint64(0)
	var text []byte
	for len(text) < 5*chunkSize {
		e := Event{Event: KindFile, Agent: "a", Op: "open", Path: strings.Repeat("v", random.IntN(300)), Verdict: Allow}
		switch random.IntN(30) {
		case 0:
			e.Verdict = Deny
		case 1:
			e.Verdict = Violation
		case 2:
			e.Path = `","verdict":"deny"`
		case 3:
			e.Verdict, e.Path = "", "verdict"
		case 4:
			e.Verdict, e.Detail = Deny, `"verdict":"allow"`
		}
		seq++
		line := appendBody(appendHead(nil, seq, now), e)
		switch random.IntN(200) {
		case 0:
			line = line[1+random.IntN(len(line)-1):]
		case 1:
			line = append(make([]byte, random.IntN(100)), line...)
		case 2:
			line = append(bytes.Repeat([]byte("x"), random.IntN(3*chunkSize)), '\n')
		case 3:
			line = []byte("\n")
		case 4:
			line = bytes.Replace(line, []byte(`"verdict":"`), []byte(`"xverdict":"`), 1)
		}
		text = append(text, line...)
	}
	for name, end := range map[string]string{"whole": "", "torn": `{"seq":9,"verdict":"deny`} {
		dir := t.TempDir()
		log := append(bytes.Clone(text), end...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Name(1)), log, 0o600))
		for _, f := range []Filter{{}, {Denied: true}, {Verdict: Violation}, {Denied: true, After: seq / 2}, {Seq: seq / 3}} {
			var want, got []string
			for line := range bytes.Lines(log) {
				raw, whole := bytes.CutSuffix(line, []byte("\n"))
				var e Event
				if err := json.Unmarshal(raw, &e); whole && (err != nil || f.match(e)) {
					want = append(want, string(raw))
				}
			}
			for e, err := range Read(noCtx, dir, f, false) {
				got = append(got, string(e.Raw))
				assert.Equal(t, json.Unmarshal(e.Raw, new(Event)) != nil, err != nil)
			}
			require.Greater(t, len(want), 10)
			assert.True(t, assert.ObjectsAreEqual(want, got), "%s, %+v: %d lines, want %d", name, f, len(got), len(want))
		}
	}
}
