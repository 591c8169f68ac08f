package trust

import (
	"testing"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/foreign"
	"github.com/scopefs/scopefs/internal/statictest"
)

func TestMain(m *testing.M) {
	statictest.Main(m, map[string]func() int{child.YAML: foreign.Main})
}
