//go:build !race

package nodesim

const underRace = false
