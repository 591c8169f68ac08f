package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// storeText is what the calls store, 1 KiB.
var storeText = strings.Repeat("0123456789abcde\n", 64)

// kvOps are the calls of a key-value store. get returns the bytes of a value.
func kvOps(set func(key string) error, get func(key string) (int, error)) []storeOp {
	key := func(n int) string { return fmt.Sprintf("k%03d", n%100) }
	return []storeOp{
		{"kv_set 1 KiB", "kv_set",
			func(n int) map[string]any { return map[string]any{"key": key(n), "value": storeText} }, func(n int) error { return set(key(n)) }},
		{"kv_get 1 KiB", "kv_get", func(n int) map[string]any { return map[string]any{"key": key(n)} }, func(n int) error {
			size, err := get(key(n))
			return enough(size, err)
		}},
	}
}

// enough returns an error if a result is smaller than what was stored.
func enough(size int, err error) error {
	if err == nil && size < len(storeText) {
		err = fmt.Errorf("the result has %d bytes", size)
	}
	return err
}

// openDirect opens SQLite in this process, with the same durability.
func openDirect(dir string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+filepath.Join(dir, "direct.db")+"?_pragma=journal_mode(PERSIST)&_pragma=synchronous(FULL)")
}

// startKV has SQLite directly. Its statements are compiled once, as those of the store are.
func startKV(dir string) (config string, ops []storeOp, stop func(), err error) {
	db, err := openDirect(dir)
	if err != nil {
		return "", nil, nil, err
	}
	stop = func() { _ = db.Close() }
	db.SetMaxOpenConns(1)
	_, err = db.Exec("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB) STRICT")
	var replace, query *sql.Stmt
	if err == nil {
		replace, err = db.Prepare("REPLACE INTO t VALUES (?, ?)")
	}
	if err == nil {
		query, err = db.Prepare("SELECT v FROM t WHERE k = ?")
	}
	if err != nil {
		stop()
		return "", nil, nil, err
	}
	set := func(key string) error {
		_, err := replace.Exec([]byte(key), []byte(storeText))
		return err
	}
	get := func(key string) (int, error) {
		var v []byte
		err := query.QueryRow([]byte(key)).Scan(&v)
		return len(v), err
	}
	return "kv: {}", kvOps(set, get), stop, nil
}

// startRedis has a server of its own, without a file.
func startRedis(dir string) (config string, ops []storeOp, stop func(), err error) {
	socket := filepath.Join(dir, "redis")
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, Protocol: 2, DialerRetries: 1})
	ctx := context.Background()
	end, err := startServer(func() error { return client.Ping(ctx).Err() },
		"redis-server", "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--maxmemory-policy", "noeviction")
	if err != nil {
		return "", nil, nil, err
	}
	set := func(key string) error { return client.Set(ctx, key, storeText, 0).Err() }
	get := func(key string) (int, error) {
		v, err := client.Get(ctx, key).Result()
		return len(v), err
	}
	return fmt.Sprintf("kv: {redis: %q}", socket), kvOps(set, get), func() { _ = client.Close(); end() }, nil
}

// startSQL has SQLite directly.
func startSQL(dir string) (config string, ops []storeOp, stop func(), err error) {
	db, err := openDirect(dir)
	if err != nil {
		return "", nil, nil, err
	}
	stop = func() { _ = db.Close() }
	const create, insert, query = "CREATE TABLE IF NOT EXISTS t (k TEXT, v TEXT)", "INSERT INTO t VALUES (?, ?)",
		"SELECT k, v FROM t WHERE rowid = ?"
	if _, err := db.Exec(create); err != nil {
		stop()
		return "", nil, nil, err
	}
	return "sql: {}", []storeOp{
		{"sql_execute CREATE IF NOT EXISTS", "sql_execute", func(int) map[string]any { return map[string]any{"sql": create} }, func(int) error {
			_, err := db.Exec(create)
			return err
		}},
		{"sql_execute INSERT 1 KiB", "sql_execute", func(n int) map[string]any {
			return map[string]any{"sql": insert, "params": []any{fmt.Sprint(n), storeText}}
		}, func(n int) error {
			_, err := db.Exec(insert, fmt.Sprint(n), storeText)
			return err
		}},
		{"sql_query a row", "sql_query", func(n int) map[string]any { return map[string]any{"sql": query, "params": []any{n%10 + 1}} }, func(n int) error {
			var k, v string
			return errors.Join(db.QueryRow(query, n%10+1).Scan(&k, &v), enough(len(v), nil))
		}},
	}, stop, nil
}

// startHTTP has a server in this process.
func startHTTP(string) (config string, ops []storeOp, stop func(), err error) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, storeText) }))
	client := &http.Client{Timeout: time.Minute}
	get := func(int) error {
		res, err := client.Get(server.URL + "/x")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var body bytes.Buffer
		n, err := io.Copy(&body, res.Body)
		return enough(int(n), err)
	}
	return fmt.Sprintf("services: {s: {url: %q, addresses: [127.0.0.1]}}", server.URL), []storeOp{
		{"http_request GET 1 KiB", "http_request", func(int) map[string]any { return map[string]any{"service": "s", "path": "x"} }, get},
	}, server.Close, nil
}
