// Posthaste-tables is what of Posthaste has the clients of databases: the
// service proxymap, which master executes, and the commands postmap and
// postalias for tables of its types, which the commands of these names execute. See package
// proxymap for why it is a program of its own.
package main

import (
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"posthaste/internal/config"
	"posthaste/internal/service"
	"posthaste/internal/table"
	"posthaste/internal/table/ldaptable"
	"posthaste/internal/table/memcache"
	"posthaste/internal/table/mongotable"
	"posthaste/internal/table/postmap"
	"posthaste/internal/table/proxymap"
	"posthaste/internal/table/sqltable"
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

// run is main with everything from outside as arguments. It returns the exit
// status.
func run(argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name, args := proxymap.Program, []string(nil)
	if len(argv) > 0 {
		name, args = filepath.Base(argv[0]), argv[1:]
	}
	if name == proxymap.Program && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	switch name {
	case "proxymap":
		return service.Main(proxymap.Spec(types), args)
	case "postmap", "postalias":
		return postmap.Run(name, types, args, stdin, stdout, stderr)
	}
	fmt.Fprintf(stderr, "%s: fatal: it is executed by posthaste, as proxymap, postmap or postalias\n", proxymap.Program)
	return 1
}

// types are the openers of the types that are here and nowhere else.
func types(cfg *config.Config) map[string]table.Opener {
	return map[string]table.Opener{
		"ldap":     ldaptable.Open(cfg),
		"memcache": memcache.Open(cfg),
		"mongodb":  mongotable.Open(cfg),
		"mysql":    sqltable.MySQL(cfg),
		"pgsql":    sqltable.PostgreSQL(cfg),
		"sqlite": sqltable.SQLite(cfg, func(source string) (*sql.DB, error) {
			return sql.Open("sqlite", source)
		}),
	}
}
