// Integrity prints what SQLite finds wrong in a database, or "ok".
package main

import (
	"database/sql"
	"fmt"
	"os"

	_ "modernc.org/sqlite"
)

func main() {
	db, err := sql.Open("sqlite", "file:"+os.Args[1])
	var text string
	if err == nil {
		err = db.QueryRow("PRAGMA integrity_check").Scan(&text)
	}
	if err != nil {
		text = err.Error()
	}
	fmt.Println(text)
}
