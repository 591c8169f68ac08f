package session

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/proc"
)

// TestActor: a process of the host acts for no session.
func TestActor(t *testing.T) {
	assert.Equal(t, history.Actor{Program: proc.Name(os.Getpid()), Lasting: true}, (&Agent{Daemon: nothing{}}).Actor(os.Getpid()))
}
