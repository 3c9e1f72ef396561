// Package adaptive is the law by which deliveries to a destination follow what it answers, and how long
// it takes: how many go on at once, and how fast one follows another. It needs no rules: it has the bounds
// that are configured, and looks for the best place between them.
//
// A [Course] is what has been learnt of one destination, from one source. It is a value in the
// scheduler (qmgr/sched): it reads no clock, and each of its calls takes constant time. [Read] says what a reply
// asks of the sender.
//
// # What a reply asks
//
//	Fewer   too many sessions at once; or 421 at the greeting, of which that is the most frequent sense
//	Slower  too many messages in a time, a reputation that has suffered, or anything that is "rate limited"
//	Later   "try again later", without a reason. One is nothing. A quarter of the last deliveries is Slower
//	Again   greylisting: the same mail is wanted again, and nothing else is asked
//	Away    nobody answered: a time-out, a refused connection. The scheduler says so, not the text
//	Nothing a success, or what concerns the recipient alone
//
// # Deliveries at once
//
// The window begins at initial_destination_concurrency and grows by one with each success, as with Postfix, until
// the first Fewer or Away. Then
//
//   - the level at which it was refused is remembered (the bad level); further refusals of the same moment
//     bring it down to the least that was refused;
//   - the window falls to seven tenths of it, once for what had begun before. Refusals of deliveries
//     that began before the window fell say nothing new;
//   - it grows back, by a quarter of what is missing with each window of successes, to just below the
//     bad level, and stays there;
//   - after a time (half a minute at first) it tries the bad level. A refusal doubles that time, up to
//     a quarter of an hour. When two windows of deliveries have passed there, the bad level moves up, by one, two, four
//     and so on, and the time is half a minute again.
//
// So a host with a fixed limit refuses one delivery in a quarter of an hour, in the long run, and a limit that was
// raised is found within that time. There is no oscillation: the window moves by one, at times that become
// rarer.
//
// At the floor a Fewer is a Slower: less at once is not possible.
//
// # Time between deliveries
//
// Without a Slower there is no such time (pace.go). With one
//
//   - the destination rests: nothing begins for half a minute, or for as long as the reply says ("try again in 300
//     seconds"). Then one delivery goes. If it is refused as well, the rest goes on until a minute is over since the first
//     refusal, two, five, ten, and so on, which are the times that people choose. So the rest is found, and remembered;
//     the next one begins a step below it;
//   - the first interval is made for a host that counts by the minute, as most do: what went through in the minute
//     before the refusal is taken for its limit, and the rate is 7 % below that. If half a minute of rest was enough, or
//     the host refuses that as well, the rate is between what was refused, which was too much, and what got through in
//     the long run, rests and all, which was not: it is their geometric mean, or the latter when they are close;
//   - a rate is good when it was in use for one and a half rests without a refusal. What a host counts over a time that
//     is longer than its rest would be more than it forgives, so that a refusal would have come by then. Where a good
//     rate is refused all the same, the rate falls by a tenth, and more if that is too little, and to be good takes
//     twice as long;
//   - then a faster one is tried: half way to the rate that was refused, on a scale of ratios, and a tenth beyond it when
//     they are close; with growing steps while that succeeds. A try that fails costs a rest, and brings the good rate
//     back. It gains as much as it is faster. So the time between two tries is so many rests that no more than that is
//     lost: ten for a tenth. It doubles when a try beyond what was refused has failed;
//   - time in which less is sent than the rate allows counts for nothing;
//   - an interval that is less than half of what the window allows by itself is given up.
//
// # How long it takes
//
// The least time that a delivery took is remembered, apart for those that opened a connection, and is
// forgotten by a sixty-fourth with each window of deliveries. If the fastest delivery of a whole window took more than three times that, and
// half a second more, the host works at more than it can: the window falls by a fifth. While it is more than twice that,
// the window does not grow. The fastest is looked at, and not the mean, so that large messages do not count.
//
// # Bounds
//
// The window is never below the floor, nor above the ceiling; the interval never above the slowest, the rest
// never above the longest. Where there is a limit by configuration it holds besides: nothing here makes any limit
// more. What is learnt outlives a reload ([Memory]), and is brought within the new bounds.
//
// # Security
//
// Replies are those of strangers. At most 512 octets of one are read, by a search for fixed words. The worst
// that a host can say is that it wants its mail slowly, in the bounds that are set for all.
package adaptive
