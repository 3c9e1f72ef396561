// Package etc holds the configuration files that are installed when there are
// none: what a new site starts from.
package etc

import _ "embed"

// Main is the main.cf for a new installation.
//
//go:embed main.cf
var Main string

// Master is the master.cf for a new installation.
//
//go:embed master.cf
var Master string
