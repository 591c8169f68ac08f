package report

import (
	"os"
	"testing"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/foreign"
)

func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.YAML: foreign.Main})
	os.Exit(m.Run())
}
