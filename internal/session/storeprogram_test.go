package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope"
)

// TestStoreProcess: the process of a store's network is no agent's.
func TestStoreProcess(t *testing.T) {
	_, err := scope.ParseID(processOf("kv"))
	assert.Error(t, err)
}
