// SPDX-License-Identifier: Apache-2.0
//
// An echo service and its client, in a language that makes its system calls itself.
// Usage: echo server PORT | echo client PORT CONNECTIONS BYTES
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
)

func number(i int) int {
	value, err := strconv.Atoi(os.Args[i])
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address string) {
	listener, err := net.Listen("tcp4", address)
	check(err)
	for {
		connection, err := listener.Accept()
		check(err)
		go func() {
			io.Copy(connection, connection)
			connection.Close()
		}()
	}
}

func ask(address string, n int, size int) {
	connection, err := net.Dial("tcp4", address)
	check(err)
	data := make([]byte, 1+n*size)
	rand.New(rand.NewSource(int64(n))).Read(data)
	go func() {
		for at := 0; at < len(data); {
			end := at + 1 + (n*7919+at*31)%100000
			if end > len(data) {
				end = len(data)
			}
			_, err := connection.Write(data[at:end])
			check(err)
			at = end
		}
		connection.(*net.TCPConn).CloseWrite()
	}()
	received, err := io.ReadAll(connection)
	check(err)
	if !bytes.Equal(received, data) {
		fmt.Fprintln(os.Stderr, "wrong bytes")
		os.Exit(1)
	}
	connection.Close()
}

func main() {
	address := fmt.Sprintf("127.0.0.1:%d", number(2))
	if os.Args[1] == "server" {
		serve(address)
	}
	connections, size := number(3), number(4)
	var group sync.WaitGroup
	for n := 0; n < connections; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			ask(address, n, size)
		}(n)
	}
	group.Wait()
	fmt.Println(connections, "echoes")
}
