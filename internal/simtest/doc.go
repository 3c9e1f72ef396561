// Package simtest runs all services of one mail system in one process, in virtual time.
package simtest
