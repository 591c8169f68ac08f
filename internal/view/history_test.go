package view

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/view/wire"
)

// TestHistoryRequestTooLarge: the daemon sends no request over the bound.
func TestHistoryRequestTooLarge(t *testing.T) {
	_, err := requestHistory(t.Context(), nil, nil, bytes.Repeat([]byte("a"), wire.MaxHistoryRequest+1))
	assert.ErrorContains(t, err, "131072 at most")
}
