//go:build race

package nodesim

const underRace = true
