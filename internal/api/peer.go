package api

import (
	"context"
	"encoding/json"
	"net"
	"net/http"

	"golang.org/x/sys/unix"
)

type peerKey struct{}

// WithPeer adds the user of the other end to the context of requests, for http.Server.ConnContext.
func WithPeer(ctx context.Context, c net.Conn) context.Context {
	if uid, ok := PeerUID(c); ok {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
}

// PeerOf returns the user that WithPeer has added.
func PeerOf(ctx context.Context) (uid uint32, ok bool) {
	uid, ok = ctx.Value(peerKey{}).(uint32)
	return uid, ok
}

// HungUp reports whether the other end of a Unix socket has closed it, whatever it has sent before.
func HungUp(c net.Conn) bool {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	_ = raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0) // POLLHUP: poll(2)
	})
	return err == nil && n > 0
}

// Only serves one user and root, whose requests have at most so many bytes.
func Only(uid uint32, refusal error, most int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, ok := PeerOf(r.Context()); !ok || peer != uid && peer != 0 {
			Refuse(w, http.StatusForbidden, Error{Text: refusal.Error(), Kind: Other})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		next.ServeHTTP(w, r)
	})
}

// Refuse answers with an error.
func Refuse(w http.ResponseWriter, code int, e Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(e)
}
