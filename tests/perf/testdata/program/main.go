// Command program is a program with functions for a test to find.
package main

import "fmt"

func main() { fmt.Println("hello") }
